#include "model/match_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "checkpoint/stored_elsewhere.h"
#include "format/json.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

constexpr std::size_t kNamesInMessage = 10;

std::string TypeAndShape(DType dtype, const std::vector<std::uint64_t>& shape) {
  return fmt::format("{} [{}]", DTypeName(dtype), EncodeDims(shape));
}

std::string Listed(const std::vector<std::string>& names, std::string_view what) {
  if (names.empty()) return "";
  std::string out = fmt::format("; {} {}: ", names.size(), what);
  for (std::size_t i = 0; i < std::min(names.size(), kNamesInMessage); ++i) {
    out += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kNamesInMessage) {
    out += fmt::format(" and {} more", names.size() - kNamesInMessage);
  }
  return out;
}

/// One comparison.
class Matching {
 public:
  Matching(std::span<const ForeignTensor> stored, const LoadVarsOptions& options)
      : stored_(stored), options_(options) {}

  Status Index() {
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      const std::string& name = TargetOf(stored_[i].name);
      if (options_.skip.contains(stored_[i].name) || options_.skip.contains(name)) {
        left_alone_.insert(name);
        continue;
      }
      const auto [it, fresh] = by_target_.emplace(name, i);
      if (fresh) continue;
      return InvalidArgumentError(fmt::format(
          "rename: both {} and {} would become {}", QuoteForMessage(stored_[it->second].name),
          QuoteForMessage(stored_[i].name), QuoteForMessage(name)));
    }
    return Status::Ok();
  }

  void Match(std::span<const VariableView> variables) {
    std::vector<bool> used(stored_.size());
    for (std::size_t v = 0; v < variables.size(); ++v) {
      const VariableView& variable = variables[v];
      if (options_.skip.contains(variable.name) || left_alone_.contains(variable.name)) {
        left_alone_.insert(variable.name);
        continue;
      }
      const auto it = by_target_.find(variable.name);
      if (it == by_target_.end()) {
        mismatch_.missing.push_back(variable.name);
        continue;
      }
      used[it->second] = true;
      const ForeignTensor& tensor = stored_[it->second];
      if (tensor.dtype != variable.dtype || tensor.shape != variable.shape) {
        mismatch_.mismatched.push_back(fmt::format("{}: stored {}, wanted {}", variable.name,
                                                   TypeAndShape(tensor.dtype, tensor.shape),
                                                   TypeAndShape(variable.dtype, variable.shape)));
        continue;
      }
      // Files of others have a dtype for complex numbers, or none for what it stands for.
      const std::string why = DifferentMeaning("", variable.name, options_);
      if (!why.empty()) {
        mismatch_.mismatched.push_back(variable.name + ": " + why);
        continue;
      }
      matches_.push_back({it->second, v});
    }
    for (const auto& [name, index] : by_target_) {
      if (!used[index]) mismatch_.unexpected.push_back(stored_[index].name);
    }
  }

  /// Names in rename and skip that are nobody's: most likely misspelt.
  Status JudgeNames(std::span<const VariableView> variables,
                    std::vector<std::pair<std::string, std::string>>* skipped) const {
    if (options_.rename.empty() && options_.skip.empty()) return Status::Ok();
    std::set<std::string_view> stored;
    std::set<std::string_view> known;
    for (const ForeignTensor& tensor : stored_) {
      stored.insert(tensor.name);
      known.insert(tensor.name);
      known.insert(TargetOf(tensor.name));
    }
    for (const VariableView& variable : variables) known.insert(variable.name);
    std::vector<std::pair<std::string_view, std::string_view>> unknown;  // option, name
    for (const auto& [from, to] : options_.rename) {
      if (!stored.contains(from)) unknown.emplace_back("rename", from);
    }
    for (const std::string& name : options_.skip) {
      if (!known.contains(name)) unknown.emplace_back("skip", name);
    }
    for (const auto& [option, name] : unknown) {
      if (options_.strict) {
        return InvalidArgumentError(fmt::format("{}: there is nothing called {} in the file",
                                                option, QuoteForMessage(std::string(name))));
      }
      skipped->emplace_back(name, "there is nothing of that name");
    }
    return Status::Ok();
  }

  Result<std::vector<VariableMatch>> Judge(
      std::vector<std::pair<std::string, std::string>>* skipped) {
    for (const std::string& name : left_alone_) {
      skipped->emplace_back(name, "left alone, as asked for");
    }
    const std::string elsewhere = StoredElsewhere(mismatch_.missing, mismatch_.unexpected);
    // No file of another program records roles: only a load of everything can say what is too much.
    if (!options_.strict || options_.stored != StoredVars::kAll) {
      for (const std::string& name : mismatch_.unexpected) {
        skipped->emplace_back(name, "not asked for");
      }
      mismatch_.unexpected.clear();
    }
    if (!options_.strict) return Lenient(skipped);
    if (mismatch_.missing.empty() && mismatch_.unexpected.empty() && mismatch_.mismatched.empty()) {
      return Loaded();
    }
    const std::string message = "the variables do not match" +
                                Listed(mismatch_.missing, "not in the file") + elsewhere +
                                Listed(mismatch_.unexpected, "stored but not asked for") +
                                Listed(mismatch_.mismatched, "of another type or shape") +
                                ". Nothing was changed; rename, skip or strict=false load the rest";
    if (options_.mismatch != nullptr) *options_.mismatch = mismatch_;
    return MismatchError(message);
  }

 private:
  const std::string& TargetOf(const std::string& stored) const {
    const auto it = options_.rename.find(stored);
    return it == options_.rename.end() ? stored : it->second;
  }

  Result<std::vector<VariableMatch>> Lenient(
      std::vector<std::pair<std::string, std::string>>* skipped) {
    for (const std::string& name : mismatch_.missing) {
      skipped->emplace_back(name, "not in the file");
    }
    for (const std::string& line : mismatch_.mismatched) {
      const std::size_t end = line.rfind(": stored ");
      skipped->emplace_back(line.substr(0, end), line.substr(end + 2));
    }
    return Loaded();
  }

  Result<std::vector<VariableMatch>> Loaded() {
    if (!matches_.empty()) return std::move(matches_);
    return MismatchError("none of the variables is stored there under its name; nothing changed");
  }

  const std::span<const ForeignTensor> stored_;
  const LoadVarsOptions& options_;
  std::map<std::string, std::size_t> by_target_;
  std::set<std::string> left_alone_;
  MismatchReport mismatch_;
  std::vector<VariableMatch> matches_;
};

}  // namespace

std::string DifferentMeaning(const std::string& stored, const std::string& variable,
                             const LoadVarsOptions& options) {
  const auto named = options.meanings.find(variable);
  const std::string wanted = named == options.meanings.end() ? "" : named->second;
  if (stored == wanted) return "";
  const auto shown = [](const std::string& meaning) {
    return meaning.empty() ? std::string("plain numbers") : meaning;
  };
  return fmt::format("stored {}, wanted {}", shown(stored), shown(wanted));
}

Result<std::vector<VariableMatch>> MatchVariables(
    std::span<const ForeignTensor> stored, std::span<const VariableView> variables,
    const LoadVarsOptions& options, std::vector<std::pair<std::string, std::string>>* skipped) {
  Matching matching(stored, options);
  if (Status status = matching.Index(); !status.ok()) return status;
  matching.Match(variables);
  if (Status status = matching.JudgeNames(variables, skipped); !status.ok()) return status;
  return matching.Judge(skipped);
}

}  // namespace cairn
