#include "trial/core_files.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/ids.h"
#include "base/status_macros.h"
#include "format/json.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

std::string Joined(const std::vector<std::string>& sentences) {
  return fmt::format("{}", fmt::join(sentences, "; "));
}

Value AsNumber(const Value& value) {
  const bool* flag = value.if_bool();
  return flag == nullptr ? value : Value(*flag ? 1 : 0);
}

/// As Python's ==, so that ranks in both languages decide alike: 1, 1.0 and true are equal. But a
/// NaN is one: ranks that all have it agree.
bool SameForRanks(const Value& a, const Value& b) {
  const Value x = AsNumber(a);
  const Value y = AsNumber(b);
  if (x.is_number() && y.is_number()) {
    const double* p = x.if_double();
    const double* q = y.if_double();
    const bool unordered = (p && *p != *p) || (q && *q != *q);
    if (unordered) return p && q && *p != *p && *q != *q;
    return CompareNumbers(x, y) == 0;
  }
  if (const Value::List *p = a.if_list(), *q = b.if_list(); p && q) {
    return std::equal(p->begin(), p->end(), q->begin(), q->end(), SameForRanks);
  }
  if (const Value::Object *p = a.if_object(), *q = b.if_object(); p && q) {
    return std::equal(p->begin(), p->end(), q->begin(), q->end(), [](const auto& m, const auto& n) {
      return m.first == n.first && SameForRanks(m.second, n.second);
    });
  }
  return a == b;
}

class MetadataMerge {
 public:
  void Put(Value::Object* into, const Value::Object& values, int rank, const std::string& where) {
    for (const auto& [key, value] : values) {
      const std::string path = where + key;
      const auto [there, fresh] = into->try_emplace(key, value);
      if (fresh) {
        owners_[path] = rank;
      } else if (there->second.is_object() && value.is_object()) {
        Put(there->second.if_object(), *value.if_object(), rank, path + "/");
      } else if (!SameForRanks(there->second, value)) {
        problems_.push_back(fmt::format("metadata '{}' is {} on rank {} and {} on rank {}", path,
                                        EncodeJson(there->second), Owner(path), EncodeJson(value),
                                        rank));
      }
    }
  }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  int Owner(const std::string& path) const {
    const auto owner = owners_.find(path);
    return owner == owners_.end() ? 0 : owner->second;
  }
  std::map<std::string, int> owners_;
  std::vector<std::string> problems_;
};

using NamesOfRanks = std::vector<std::vector<std::string>>;
using SharedNames = std::map<std::string, std::vector<int>>;

/// Names that several ranks give, with those ranks.
SharedNames FindShared(const NamesOfRanks& names) {
  SharedNames ranks;
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    for (const std::string& name : names[rank]) ranks[name].push_back(static_cast<int>(rank));
  }
  std::erase_if(ranks, [](const auto& entry) { return entry.second.size() < 2; });
  return ranks;
}

/// Sentences about names that are a file of one rank and a directory of another.
std::vector<std::string> FindCrossings(const NamesOfRanks& names) {
  std::map<std::string, std::size_t, std::less<>> files;
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    for (const std::string& name : names[rank]) files.try_emplace(name, rank);
  }
  std::set<std::string> problems;
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    for (const std::string& name : names[rank]) {
      for (std::size_t at = name.rfind('/'); at != std::string::npos && at > 0;
           at = name.rfind('/', at - 1)) {
        const auto file = files.find(std::string_view(name).substr(0, at));
        if (file == files.end()) continue;
        problems.insert(fmt::format("'{}' is a file of rank {} and a directory of rank {}",
                                    file->first, file->second, rank));
      }
    }
  }
  return {problems.begin(), problems.end()};
}

Result<NamesOfRanks> GatherNames(const std::vector<UserFile>& mine, DistributedContext* ranks) {
  Value::List own;
  for (const UserFile& file : mine) own.emplace_back(file.name);
  ASSIGN_OR_RETURN(const std::vector<Value> lists, ranks->AllGather(std::move(own)));
  NamesOfRanks names;
  for (const Value& list : lists) {
    names.emplace_back();
    if (list.if_list() == nullptr) return CorruptionError("a rank sent no list of its files");
    for (const Value& name : *list.if_list()) {
      if (name.if_string()) names.back().push_back(*name.if_string());
    }
  }
  return names;
}

/// What ranks tell each other of a file: a hash of its content; of no file: of nothing.
Result<std::string> FileDigest(const std::string& path) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> sum(EVP_MD_CTX_new(),
                                                                    &EVP_MD_CTX_free);
  if (sum == nullptr || EVP_DigestInit_ex(sum.get(), EVP_blake2b512(), nullptr) != 1) {
    return InternalError("blake2b: not available");
  }
  if (!path.empty()) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return NotFoundError("cannot read " + QuoteForMessage(path));
    std::vector<char> block(1u << 20);
    while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount()) {
      EVP_DigestUpdate(sum.get(), block.data(), static_cast<std::size_t>(file.gcount()));
    }
    if (file.bad()) return UnavailableError("read " + QuoteForMessage(path));
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(sum.get(), digest.data(), &size);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace

Result<std::vector<UserFile>> FilesIn(const std::string& directory, const Selector& selector) {
  std::vector<UserFile> files;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return NotFoundError("there is no directory " + QuoteForMessage(directory));
  }
  auto entry = fs::recursive_directory_iterator(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().lexically_relative(directory).generic_string();
    UserFile file{.name = "", .path = "", .bytes = ""};
    if (entry->is_directory(error)) {
      if (entry->is_symlink(error)) {
        return InvalidArgumentError(QuoteForMessage(entry->path().string()) +
                                    " is a link to a directory");
      }
      if (!fs::is_empty(entry->path(), error)) continue;
      if (selector && !selector(name + "/")) continue;
      file.name = name + "/" + kEmptyDirectory;
    } else if (!entry->is_regular_file(error)) {
      return InvalidArgumentError(QuoteForMessage(entry->path().string()) +
                                  " is neither a file nor a directory");
    } else {
      if (selector && !selector(name)) continue;
      file.name = std::move(name);
      file.path = fs::absolute(entry->path()).string();
    }
    files.push_back(std::move(file));
  }
  if (error) return UnavailableError("list " + directory + ": " + error.message());
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

Status FetchFiles(const CheckpointInfo& info, const std::string& directory,
                  const Selector& selector, FetchHow how) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, UserFilesOf(info.path));
  if (selector) {
    std::erase_if(names, [&](const std::string& name) {
      const fs::path path = name;
      return !selector(
          path.filename() == kEmptyDirectory ? path.parent_path().generic_string() + "/" : name);
    });
  }
  return FetchUserFiles(info.path, names, directory, how);
}

Result<Value> MergeMetadata(const std::vector<Value>& given) {
  Value merged = Value::Object{};
  MetadataMerge merge;
  for (std::size_t rank = 0; rank < given.size(); ++rank) {
    const Value::Object* values = given[rank].if_object();
    if (values != nullptr) merge.Put(merged.if_object(), *values, static_cast<int>(rank), "");
  }
  if (merge.problems().empty()) return merged;
  return InvalidArgumentError("the ranks do not agree: " + Joined(merge.problems()));
}

Result<std::vector<UserFile>> SettleConflicts(std::vector<UserFile> mine,
                                              DistributedContext* ranks) {
  ASSIGN_OR_RETURN(const NamesOfRanks names, GatherNames(mine, ranks));
  std::vector<std::string> problems = FindCrossings(names);
  const SharedNames shared = FindShared(names);
  Value::Object digests;
  for (const UserFile& file : mine) {
    if (!shared.contains(file.name)) continue;
    auto digest = FileDigest(file.path);
    // A file that cannot be read differs from every other.
    digests[file.name] = digest.ok() ? *std::move(digest) : digest.status().ToString();
  }
  ASSIGN_OR_RETURN(const std::vector<Value> said, ranks->AllGather(digests));
  for (const auto& [name, owners] : shared) {
    const auto digest = [&said, &key = name](int rank) {
      const Value::Object* all = said[static_cast<std::size_t>(rank)].if_object();
      const auto at = all == nullptr ? Value::Object::const_iterator() : all->find(key);
      return all == nullptr || at == all->end() ? Value() : at->second;
    };
    for (std::size_t i = 1; i < owners.size(); ++i) {
      if (digest(owners[i]) == digest(owners[0])) continue;
      problems.push_back(fmt::format("'{}' has other content on rank {} than on rank {}", name,
                                     owners[0], owners[i]));
    }
  }
  if (!problems.empty()) {
    return InvalidArgumentError("the ranks' files do not fit together: " + Joined(problems));
  }
  std::erase_if(mine, [&](const UserFile& file) {
    const auto owners = shared.find(file.name);
    return owners != shared.end() && owners->second.front() != ranks->rank();
  });
  return mine;
}

Result<std::unique_ptr<ScratchDirectory>> ScratchDirectory::Make(const fs::path& parent,
                                                                 const std::string& prefix) {
  const fs::path path = parent / (prefix + IdSource::System()->NewUuid());
  std::error_code error;
  for (int attempt = 0; attempt < 100; ++attempt) {
    fs::create_directories(path, error);
    if (error != std::errc::no_such_file_or_directory) break;
    // Another rank that left has just taken the parent away.
  }
  if (error) return UnavailableError("make " + path.string() + ": " + error.message());
  return std::unique_ptr<ScratchDirectory>(new ScratchDirectory(path));
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (path_.parent_path().filename() == kStaging) {
    fs::remove(path_.parent_path(), ignored);  // of the last rank to leave
  }
}

}  // namespace cairn::core
