#include "cli/selection.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/transfer.h"
#include "cli/output.h"
#include "format/json.h"

namespace cairn::cli {
namespace {

constexpr std::size_t kShortestPrefix = 4;
constexpr std::size_t kPrintedPrefix = 8;

std::optional<std::int64_t> StepFrom(std::string_view word) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), step);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return step;
}

bool LooksLikeId(std::string_view word) {
  return word.size() >= kShortestPrefix && word.size() <= 36 &&
         word.find_first_not_of("0123456789abcdef-") == word.npos;
}

Result<Selected> SelectById(const RepositoryView& view, const std::string& where,
                            const std::string& word) {
  std::vector<const Checkpoint*> found;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.removed && checkpoint.manifest->id.starts_with(word)) {
      // Of two directories with one id the one that counts.
      const auto same = std::find_if(found.begin(), found.end(), [&](const Checkpoint* other) {
        return other->manifest->id == checkpoint.manifest->id;
      });
      if (same == found.end()) {
        found.push_back(&checkpoint);
      } else if (checkpoint.counts) {
        *same = &checkpoint;
      }
    }
  }
  if (found.size() == 1) return Selected{found.front(), ""};
  if (found.empty()) return Choose(view, where, {.step = {}, .id = word}).status();
  std::string ids;
  for (const Checkpoint* checkpoint : found) {
    ids += (ids.empty() ? "" : ", ") + checkpoint->manifest->id;
  }
  return InvalidArgumentError("\"" + word + "\" begins several ids: " + ids);
}

Result<Selected> SelectByStep(const RepositoryView& view, const std::string& where,
                              std::int64_t step) {
  ASSIGN_OR_RETURN(const Checkpoint* chosen, Choose(view, where, {.step = step, .id = ""}));
  Selected selected{chosen, ""};
  const auto same = std::count_if(view.checkpoints.begin(), view.checkpoints.end(),
                                  [&](const Checkpoint& checkpoint) {
                                    return checkpoint.counts && checkpoint.manifest->step == step;
                                  });
  if (same > 1) {
    selected.note = "step " + std::to_string(step) + " was saved " + std::to_string(same) +
                    " times; this is the newest, " + ShortId(chosen->manifest->id) +
                    " (name another by its id)";
  }
  return selected;
}

}  // namespace

Result<OpenedRepository> OpenRepository(const std::string& directory) {
  OpenedRepository opened;
  ASSIGN_OR_RETURN(opened.env, ExistingDirectory(directory));
  RepositoryReader reader(opened.env.store.get());
  auto view = reader.Read();
  if (!view.ok()) {
    if (!view.status().Is(Code::kNotFound)) return view.status();
    if (IsCheckpointDirectory(directory)) {
      return InvalidArgumentError("\"" + directory +
                                  "\" is a single checkpoint; name the repository it is in");
    }
    return NotFoundError("\"" + directory +
                         "\" is not a checkpoint repository: it has no cairn.json; name the "
                         "directory that the training saves into");
  }
  opened.view = *std::move(view);
  return opened;
}

Result<Selected> Select(const RepositoryView& view, const std::string& where,
                        const std::string& word) {
  if (word.empty() || word == "latest") {
    ASSIGN_OR_RETURN(const Checkpoint* latest, Choose(view, where, {}));
    return Selected{latest, ""};
  }
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (checkpoint.directory == word && !checkpoint.removed) return Selected{&checkpoint, ""};
  }
  if (const auto step = StepFrom(word)) {
    auto selected = SelectByStep(view, where, *step);
    if (selected.ok() || word.size() < kPrintedPrefix || !LooksLikeId(word)) return selected;
    // The digits of an id happen to be decimal ones at times.
    auto by_id = SelectById(view, where, word);
    return by_id.ok() ? by_id : selected;
  }
  if (LooksLikeId(word)) return SelectById(view, where, word);
  for (const DamagedCheckpoint& damaged : view.damaged) {
    if (damaged.directory != word) continue;
    if (damaged.unread) return damaged.status;
    return Status(damaged.status.code(),
                  std::string(damaged.status.message()) +
                      "; it counts for nothing: put a whole copy in its place, or delete the "
                      "directory",
                  damaged.status.reason());
  }
  return InvalidArgumentError(QuoteForMessage(word) +
                              " is neither a step, nor an id, nor a checkpoint's directory; `cairn "
                              "checkpoint ls` shows them");
}

Result<SelectedCheckpoint> SelectIn(const std::string& directory, const std::string& word) {
  RETURN_IF_ERROR(ExistingDirectory(directory).status());
  SelectedCheckpoint out;
  if (word.empty() && IsCheckpointDirectory(directory)) {
    ASSIGN_OR_RETURN(PlacedCheckpoint placed, ReadCheckpointAt(directory));
    out.env = std::move(placed.env);
    out.checkpoint = std::move(placed.checkpoint);
    return out;
  }
  ASSIGN_OR_RETURN(OpenedRepository opened, OpenRepository(directory));
  ASSIGN_OR_RETURN(const Selected selected, Select(opened.view, directory, word));
  out.env = std::move(opened.env);
  out.checkpoint = *selected.checkpoint;
  out.latest = selected.checkpoint == opened.view.Latest();
  out.note = selected.note;
  return out;
}

}  // namespace cairn::cli
