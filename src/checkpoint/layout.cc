#include "checkpoint/layout.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "format/json.h"
#include "storage/store.h"

namespace cairn {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t RoundUp(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

/// A tensor of the request, checked.
struct Item {
  std::size_t index = 0;
  std::string stored_name;
  std::uint64_t bytes = 0;
  bool streamed = false;
  bool unchanged = false;
};

std::string Quoted(std::string_view name) {
  constexpr std::size_t kShown = 120;
  if (name.size() <= kShown) return "\"" + std::string(name) + "\"";
  return "\"" + std::string(name.substr(0, kShown)) + "…\" (" + std::to_string(name.size()) +
         " bytes)";
}

Status CheckShard(const Tensor& tensor) {
  const ShardSpec& shard = *tensor.shard;
  if (shard.global_shape.size() != tensor.shape.size() ||
      shard.offset.size() != tensor.shape.size()) {
    return InvalidArgumentError("tensor " + Quoted(tensor.name) +
                                ": shape, global shape and offset of a shard must have the same "
                                "number of dimensions");
  }
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (shard.offset[d] > shard.global_shape[d] ||
        tensor.shape[d] > shard.global_shape[d] - shard.offset[d]) {
      return InvalidArgumentError("tensor " + Quoted(tensor.name) +
                                  ": the shard reaches outside its array in dimension " +
                                  std::to_string(d));
    }
  }
  return Status::Ok();
}

/// Packs tensors into safetensors files of one plan.
class Planner {
 public:
  Planner(const SaveRequest& request, std::string participant, const LayoutLimits& limits,
          bool stream_all)
      : request_(request),
        participant_(std::move(participant)),
        limits_(limits),
        stream_all_(stream_all) {}

  Status AddTensors(const SaveHistory& history, int rank, int world_size);
  Status AddSmallFiles();
  Status AddUserFiles();
  void AddIndex();
  /// Takes over the files of tensors, and their index, from an earlier plan.
  void Adopt(SavePlan last);
  void AddAdoptedIndex();
  SavePlan Take();

 private:
  Status CheckTensors(const SaveHistory& history, int rank, int world_size,
                      std::map<TensorGroup, std::vector<Item>>* groups);
  Status PackModel(std::vector<Item> items);
  Status EmitFile(std::string path, std::vector<Item> items, bool unchanged);
  TensorEntry EntryOf(const Item& item) const;

  const SaveRequest& request_;
  const std::string participant_;
  const LayoutLimits limits_;
  const bool stream_all_;
  SavePlan plan_;
  SafetensorsIndex index_;
  std::optional<PlannedFile> adopted_index_;
  int model_files_ = 0;
};

Status Planner::CheckTensors(const SaveHistory& history, int rank, int world_size,
                             std::map<TensorGroup, std::vector<Item>>* groups) {
  std::map<std::string, std::uint64_t> replicated;
  std::set<std::pair<TensorGroup, std::string>> taken;
  std::set<std::string> sharded;
  std::vector<const Tensor*> with_at;
  std::vector<Item> items;
  for (std::size_t i = 0; i < request_.tensors.size(); ++i) {
    const Tensor& tensor = request_.tensors[i];
    if (tensor.name.empty() || tensor.name == "__metadata__") {
      return InvalidArgumentError("a tensor may not be called " + Quoted(tensor.name));
    }
    if (!IsValidUtf8(tensor.name)) {
      return InvalidArgumentError("the name of tensor number " + std::to_string(i) +
                                  " is not valid UTF-8");
    }
    Item item;
    item.index = i;
    auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) return bytes.status().WithContext("tensor " + Quoted(tensor.name));
    item.bytes = *bytes;
    if (tensor.data == nullptr && tensor.source == nullptr && item.bytes > 0) {
      return InvalidArgumentError("tensor " + Quoted(tensor.name) + " has neither data nor source");
    }
    item.stored_name = tensor.name;
    if (tensor.shard) {
      RETURN_IF_ERROR(CheckShard(tensor));
      item.stored_name = PieceName(tensor.name, tensor.shard->offset);
    }
    item.streamed = stream_all_ || tensor.source != nullptr;
    if (const auto it = history.find(item.stored_name); it != history.end()) {
      item.unchanged = !it->second.changed;
    }
    if (!taken.insert({tensor.group, item.stored_name}).second) {
      return InvalidArgumentError("two tensors are called " + Quoted(item.stored_name));
    }
    if (tensor.shard) {
      sharded.insert(tensor.name);
    } else if (tensor.name.find('@') != tensor.name.npos) {
      with_at.push_back(&tensor);
    }
    if (tensor.replicated) replicated[item.stored_name] = item.bytes;
    items.push_back(std::move(item));
  }
  for (const Tensor* tensor : with_at) {
    // "x@0" beside pieces of "x" would be read as one of them.
    if (sharded.contains(tensor->name.substr(0, tensor->name.rfind('@')))) {
      return InvalidArgumentError("the tensor " + Quoted(tensor->name) +
                                  " is called like a piece of a distributed array; rename it");
    }
  }
  const std::map<std::string, int> writers = AssignReplicated(replicated, world_size);
  for (Item& item : items) {
    const Tensor& tensor = request_.tensors[item.index];
    if (tensor.replicated && writers.at(item.stored_name) != rank) continue;
    (*groups)[tensor.group].push_back(std::move(item));
  }
  return Status::Ok();
}

TensorEntry Planner::EntryOf(const Item& item) const {
  const Tensor& tensor = request_.tensors[item.index];
  TensorEntry entry;
  entry.name = item.stored_name;
  entry.dtype = tensor.dtype;
  entry.shape = tensor.shape;
  return entry;
}

Status Planner::AddTensors(const SaveHistory& history, int rank, int world_size) {
  std::map<TensorGroup, std::vector<Item>> groups;
  RETURN_IF_ERROR(CheckTensors(history, rank, world_size, &groups));
  RETURN_IF_ERROR(PackModel(std::move(groups[TensorGroup::kModel])));
  if (auto& own = groups[TensorGroup::kState]; !own.empty()) {
    RETURN_IF_ERROR(
        EmitFile(names::Path(participant_, names::kStateTensors), std::move(own), false));
  }
  if (auto& tables = groups[TensorGroup::kTable]; !tables.empty()) {
    RETURN_IF_ERROR(EmitFile(names::Path(names::kTables, participant_ + ".safetensors"),
                             std::move(tables), false));
  }
  return Status::Ok();
}

Status Planner::PackModel(std::vector<Item> items) {
  // Tensors that did not change last time apart from those that did, streamed ones apart from both:
  // the file is the unit of sharing, and of being copied into the arena.
  std::map<std::pair<bool, bool>, std::vector<Item>> classes;
  auto emit = [&](std::vector<Item> file, bool unchanged) -> Status {
    char number[32];
    std::snprintf(number, sizeof number, "-%05d.safetensors", ++model_files_);
    return EmitFile(names::Path(names::kModel, participant_ + number), std::move(file), unchanged);
  };
  for (Item& item : items) {
    if (item.bytes >= limits_.own_file_bytes) {
      const bool unchanged = item.unchanged;
      std::vector<Item> alone;
      alone.push_back(std::move(item));
      RETURN_IF_ERROR(emit(std::move(alone), unchanged));
      plan_.files.back().own_file = true;
    } else {
      classes[{item.streamed, item.unchanged}].push_back(std::move(item));
    }
  }
  for (auto& [key, members] : classes) {
    std::vector<Item> file;
    std::uint64_t bytes = 0;
    std::uint64_t header = 64;
    for (Item& item : members) {
      std::uint64_t cost = SafetensorsHeaderCost(EntryOf(item));
      if (const auto& shard = request_.tensors[item.index].shard) {
        cost += 2 * item.stored_name.size() + EncodeDims(shard->global_shape).size() + 32;
      }
      if (!file.empty() && (bytes + item.bytes > limits_.packed_file_bytes ||
                            header + cost > limits_.header_bytes)) {
        RETURN_IF_ERROR(emit(std::exchange(file, {}), key.second));
        bytes = 0;
        header = 64;
      }
      bytes += item.bytes;
      header += cost;
      file.push_back(std::move(item));
    }
    if (!file.empty()) RETURN_IF_ERROR(emit(std::move(file), key.second));
  }
  return Status::Ok();
}

Status Planner::EmitFile(std::string path, std::vector<Item> items, bool unchanged) {
  // Multiples of 4 KiB first, so that they start at page boundaries; then by falling alignment.
  auto alignment = [](const Item& item) {
    if (item.bytes % kPage == 0) return kPage;
    return std::uint64_t{1} << std::countr_zero(item.bytes);
  };
  std::stable_sort(items.begin(), items.end(),
                   [&](const Item& a, const Item& b) { return alignment(a) > alignment(b); });
  PlannedFile file;
  file.path = std::move(path);
  file.expect_unchanged = unchanged;
  std::vector<TensorEntry> entries;
  SafetensorsMetadata metadata;
  std::uint64_t offset = 0;
  for (const Item& item : items) {
    const Tensor& tensor = request_.tensors[item.index];
    TensorEntry entry = EntryOf(item);
    entry.begin = offset;
    entry.end = offset + item.bytes;
    offset = entry.end;
    entries.push_back(std::move(entry));
    if (tensor.shard) {
      metadata[PieceShapeKey(tensor.name)] = EncodeDims(tensor.shard->global_shape);
    }
    file.streamed = file.streamed || item.streamed;
  }
  auto head = EncodeSafetensorsHeader(entries, metadata);
  if (!head.ok()) return head.status().WithContext("plan " + file.path);
  file.head = *std::move(head);
  file.bytes = file.head.size() + offset;
  for (std::size_t i = 0; i < items.size(); ++i) {
    PlannedTensor planned;
    planned.index = items[i].index;
    planned.stored_name = std::move(items[i].stored_name);
    planned.file_offset = file.head.size() + entries[i].begin;
    planned.bytes = items[i].bytes;
    if (file.path.starts_with(names::kModel)) {
      index_.files[planned.stored_name] = file.path.substr(names::kModel.size() + 1);
      index_.total_bytes += planned.bytes;
    }
    file.tensors.push_back(std::move(planned));
  }
  plan_.files.push_back(std::move(file));
  return Status::Ok();
}

Status Planner::AddSmallFiles() {
  for (const auto& [name, bytes] : request_.state_files) {
    PlannedFile file;
    // "/trainer_0/state.json": written for a trainer by the server that it gave it to.
    const bool for_another = name.starts_with('/');
    file.path = for_another ? name.substr(1) : names::Path(participant_, name);
    RETURN_IF_ERROR(ValidateObjectName(file.path).WithContext("state file " + Quoted(name)));
    if (for_another && !file.path.starts_with("trainer_")) {
      return InvalidArgumentError("state file " + Quoted(name) + " is not a trainer's");
    }
    if (name == names::kStateTensors) {
      return InvalidArgumentError("a state file may not be called " + Quoted(name));
    }
    file.head = bytes;
    file.bytes = bytes.size();
    plan_.files.push_back(std::move(file));
  }
  return Status::Ok();
}

/// Of "a" and "a/b" a disk can hold only one.
Status CheckNoneIsBelowAnother(const std::set<std::string>& names) {
  for (const std::string& name : names) {
    for (std::size_t slash = name.find('/'); slash != name.npos;
         slash = name.find('/', slash + 1)) {
      const std::string above = name.substr(0, slash);
      if (!names.contains(above)) continue;
      return InvalidArgumentError("files " + Quoted(above) + " and " + Quoted(name) +
                                  ": the first would have to be a file and a directory; rename "
                                  "one of them");
    }
  }
  return Status::Ok();
}

Status Planner::AddUserFiles() {
  std::set<std::string> taken;
  for (const UserFile& user : request_.files) {
    PlannedFile file;
    file.path = names::Path(names::kFiles, user.name);
    RETURN_IF_ERROR(ValidateObjectName(file.path).WithContext("file " + Quoted(user.name)));
    if (!taken.insert(user.name).second) {
      return InvalidArgumentError("two files are called " + Quoted(user.name));
    }
    if (user.path.empty()) {
      file.head = user.bytes;
      file.bytes = user.bytes.size();
    } else {
      struct stat info;
      if (stat(user.path.c_str(), &info) != 0) {
        const std::string message =
            "file " + Quoted(user.name) + ": \"" + user.path + "\": " + std::strerror(errno);
        return errno == ENOENT ? NotFoundError(message) : InvalidArgumentError(message);
      }
      if (!S_ISREG(info.st_mode)) {
        return InvalidArgumentError("file " + Quoted(user.name) + ": \"" + user.path +
                                    "\" is not a regular file");
      }
      file.source_path = user.path;
      file.bytes = static_cast<std::uint64_t>(info.st_size);
      file.streamed = true;
    }
    plan_.files.push_back(std::move(file));
  }
  return CheckNoneIsBelowAnother(taken);
}

void Planner::AddIndex() {
  PlannedFile file;
  file.path = names::kIndex;
  file.head = EncodeSafetensorsIndex(index_);
  file.bytes = file.head.size();
  plan_.files.push_back(std::move(file));
}

void Planner::Adopt(SavePlan last) {
  for (PlannedFile& file : last.files) {
    if (!file.tensors.empty()) {
      plan_.files.push_back(std::move(file));
    } else if (file.path == names::kIndex) {
      file.streamed = false;
      adopted_index_ = std::move(file);
    }
  }
}

void Planner::AddAdoptedIndex() {
  if (adopted_index_) plan_.files.push_back(*std::move(adopted_index_));
}

SavePlan Planner::Take() {
  std::uint64_t arena = 0;
  for (PlannedFile& file : plan_.files) {
    plan_.total_bytes += file.bytes;
    if (!file.streamed) {
      if (stream_all_) {
        file.streamed = true;  // small files too: there is no arena at all
        continue;
      }
      file.arena_offset = arena;
      arena += RoundUp(file.bytes, kPage);
      continue;
    }
    // Plain tensors of a streamed file are copied too: their memory changes after Save returned.
    for (PlannedTensor& tensor : file.tensors) {
      if (stream_all_ || request_.tensors[tensor.index].source != nullptr) continue;
      tensor.arena_offset = arena;
      arena += RoundUp(tensor.bytes, kPage);
    }
  }
  plan_.arena_bytes = arena;
  return std::move(plan_);
}

}  // namespace

std::map<std::string, int> AssignReplicated(
    const std::map<std::string, std::uint64_t>& bytes_by_name, int world_size) {
  std::vector<std::pair<std::uint64_t, const std::string*>> order;
  order.reserve(bytes_by_name.size());
  for (const auto& [name, bytes] : bytes_by_name) order.emplace_back(bytes, &name);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::uint64_t> load(static_cast<std::size_t>(std::max(world_size, 1)), 0);
  std::map<std::string, int> writers;
  for (const auto& [bytes, name] : order) {
    const auto least = std::min_element(load.begin(), load.end());
    writers[*name] = static_cast<int>(least - load.begin());
    *least += bytes + 1;  // the 1 spreads tensors without bytes as well
  }
  return writers;
}

Result<SavePlan> PlanSave(const SaveRequest& request, const std::string& participant, int rank,
                          int world_size, const SaveHistory& history, const LayoutLimits& limits,
                          bool index_file, bool stream_all) {
  Planner planner(request, participant, limits, stream_all);
  RETURN_IF_ERROR(planner.AddTensors(history, rank, world_size));
  RETURN_IF_ERROR(planner.AddSmallFiles());
  RETURN_IF_ERROR(planner.AddUserFiles());
  if (index_file) planner.AddIndex();
  return planner.Take();
}

Result<SavePlan> PlanAgain(SavePlan last, const SaveRequest& request,
                           const std::string& participant, bool stream_all) {
  Planner planner(request, participant, LayoutLimits{}, stream_all);
  planner.Adopt(std::move(last));
  RETURN_IF_ERROR(planner.AddSmallFiles());
  RETURN_IF_ERROR(planner.AddUserFiles());
  planner.AddAdoptedIndex();
  return planner.Take();
}

}  // namespace cairn
