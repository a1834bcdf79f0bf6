#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include <cairn/transfer.h>

#include "base/status_macros.h"
#include "checkpoint/chain.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/transfer.h"
#include "cli/checkpoint_commands.h"
#include "cli/output.h"
#include "cli/selection.h"

namespace cairn::cli {
namespace {

std::string Described(const CheckpointInfo& info) {
  return fmt::format("step {} ({}, {})", info.step, ShortId(info.id), HumanBytes(info.bytes));
}

Value Texts(const std::vector<std::string>& texts) {
  Value::List list;
  for (const std::string& text : texts) list.emplace_back(text);
  return list;
}

Value Infos(const std::vector<CheckpointInfo>& infos) {
  Value::List list;
  for (const CheckpointInfo& info : infos) list.emplace_back(InfoJson(info));
  return list;
}

}  // namespace

Result<Output> Export(const ExportOptions& options, Console* console) {
  const std::string& directory = options.words.front();
  const std::string& target = options.words.back();
  if (options.words.size() == 3 && options.words[1].empty()) {
    return InvalidArgumentError(
        "STEP|ID is empty (an unset variable?); leave it out if the latest "
        "is meant");
  }
  if (options.words.size() == 2 && target != "latest") {
    // "export runs/a 40" would put the latest into a directory "40": OUT was forgotten.
    if (const auto meant = SelectIn(directory, target); meant.ok() && !target.empty()) {
      return InvalidArgumentError(
          fmt::format("\"{}\" is a checkpoint of \"{}\", and OUT is missing: cairn checkpoint "
                      "export {} {} OUT (a "
                      "directory of that name would be ./{})",
                      Printable(target), Printable(directory), Printable(directory),
                      Printable(target), Printable(target)));
    }
  }
  ASSIGN_OR_RETURN(const SelectedCheckpoint selected,
                   SelectIn(directory, options.words.size() == 3 ? options.words[1] : ""));
  if (!selected.note.empty()) console->Note("note: " + selected.note);
  console->CatchInterrupts();
  ProgressBar bar("export", console->clock(), console->progress_enabled());
  auto exported =
      ExportFrom(selected.env.store.get(), selected.checkpoint, target, console->Control(&bar));
  bar.Clear();
  if (!exported.ok()) return exported.status();
  Output out;
  out.text = fmt::format("Exported {} to {}: {}, {} in {}.\n", Described(exported->info),
                         Printable(target), Counted(exported->tensors, "tensor"),
                         HumanBytes(exported->bytes), Counted(exported->files.size(), "file"));
  if (!exported->left_out.empty()) {
    out.text += "Left out, the trainers' own state: ";
    for (std::size_t i = 0; i < exported->left_out.size() && i < 5; ++i) {
      out.text += (i == 0 ? "" : ", ") + Printable(exported->left_out[i]);
    }
    if (exported->left_out.size() > 5) {
      out.text += fmt::format(" and {} more", exported->left_out.size() - 5);
    }
    out.text += "\n";
  }
  out.json = Value::Object{
      {"checkpoint", InfoJson(exported->info)}, {"out", target},
      {"tensors", exported->tensors},           {"bytes", exported->bytes},
      {"files", Texts(exported->files)},        {"left_out", Texts(exported->left_out)}};
  return out;
}

Result<Output> Import(const ImportOptions& options, Console* console) {
  ImportRequest request;
  request.source = options.source;
  request.directory = options.directory;
  request.step = options.step;
  request.files = !options.no_files;
  request.takeover = options.takeover;
  console->CatchInterrupts();
  ProgressBar bar("import", console->clock(), console->progress_enabled());
  auto imported = ImportCheckpoint(request, console->Control(&bar));
  bar.Clear();
  if (!imported.ok()) return imported.status();
  Output out;
  out.text =
      fmt::format("Imported {} and {} as {}; it is the latest in {}.\n",
                  Counted(imported->tensors, "tensor"), Counted(imported->files.size(), "file"),
                  Described(imported->info), Printable(options.directory));
  if (std::any_of(imported->files.begin(), imported->files.end(), [](const std::string& file) {
        return file.starts_with(names::Path(names::kTables, ""));
      })) {
    out.text +=
        "The rows of tables are kept as files, where a restore of tables does not look: `cairn "
        "checkpoint copy` brings a checkpoint over with its tables.\n";
  }
  Value::List skipped;
  for (const auto& [file, reason] : imported->skipped) {
    out.text += "Skipped " + Printable(file) + ": " + Printable(reason) + "\n";
    skipped.emplace_back(Value::Object{{"file", file}, {"reason", reason}});
  }
  out.json = Value::Object{{"checkpoint", InfoJson(imported->info)},
                           {"tensors", imported->tensors},
                           {"bytes", imported->bytes},
                           {"files", Texts(imported->files)},
                           {"skipped", std::move(skipped)}};
  return out;
}

Result<Output> Copy(const CopyOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const OpenedRepository opened, OpenRepository(options.source));
  CopyRequest request;
  request.source = options.source;
  request.target = options.target;
  request.all = options.all;
  request.adopt = options.adopt;
  request.takeover = options.takeover;
  if (!options.which.empty()) request.choices.clear();
  for (const std::string& word : options.which) {
    ASSIGN_OR_RETURN(const Selected selected, Select(opened.view, options.source, word));
    if (!selected.note.empty()) console->Note("note: " + selected.note);
    request.choices.push_back({.step = {}, .id = selected.checkpoint->manifest->id});
  }
  console->CatchInterrupts();
  ProgressBar bar("copy", console->clock(), console->progress_enabled());
  auto copied = CopyCheckpoints(request, console->Control(&bar));
  bar.Clear();
  if (!copied.ok()) return copied.status();
  Output out;
  for (const CheckpointInfo& info : copied->already_there) {
    out.text += "Already there: " + Described(info) + "\n";
  }
  for (const std::string& directory : copied->vanished) {
    out.text += "Removed meanwhile from the source: " + Printable(directory) + "\n";
  }
  for (const CheckpointInfo& info : copied->copied) {
    out.text += "Copied " + Described(info) + "\n";
  }
  if (!copied->copied.empty()) {
    out.text += fmt::format("{} written and compared", HumanBytes(copied->bytes));
    if (copied->bytes_shared > 0) {
      out.text += fmt::format(", {} shared with checkpoints that were there",
                              HumanBytes(copied->bytes_shared));
    }
    if (copied->bytes_resumed > 0) {
      out.text += fmt::format(", {} were there from a copy that was cut short",
                              HumanBytes(copied->bytes_resumed));
    }
    out.text += fmt::format("; the latest in {} is now step {}.\n", Printable(options.target),
                            copied->copied.back().step);
  } else if (copied->vanished.empty()) {
    out.text += "Nothing to do.\n";
  }
  if (copied->copied.empty() && copied->already_there.empty()) out.exit_code = 1;
  out.json = Value::Object{
      {"copied", Infos(copied->copied)},      {"already_there", Infos(copied->already_there)},
      {"vanished", Texts(copied->vanished)},  {"bytes", copied->bytes},
      {"bytes_shared", copied->bytes_shared}, {"bytes_resumed", copied->bytes_resumed}};
  return out;
}

Result<Output> Merge(const MergeOptions& options, Console* console) {
  MergeRequest request;
  request.parts = options.parts;
  request.target = options.target;
  request.step = options.step;
  request.separate_files = options.separate_files;
  request.takeover = options.takeover;
  for (const std::string& part : options.parts) RETURN_IF_ERROR(OpenRepository(part).status());
  console->CatchInterrupts();
  ProgressBar bar("merge", console->clock(), console->progress_enabled());
  auto merged = MergeCheckpoints(request, console->Control(&bar));
  bar.Clear();
  if (!merged.ok()) return merged.status();
  Output out;
  if (merged->already_there) {
    out.text = "Already there: " + Described(merged->info) + " was merged from these parts.\n";
  } else {
    out.text = fmt::format("Merged {} into {} of {}.\n", Counted(options.parts.size(), "part"),
                           Described(merged->info), Printable(options.target));
    if (merged->deduplicated > 0) {
      out.text +=
          HumanBytes(merged->deduplicated) + " that several ranks had alike are kept once.\n";
    }
    for (const std::string& file : merged->renamed_files) {
      out.text += "Kept apart: " + Printable(file) + "\n";
    }
  }
  out.json = Value::Object{{"checkpoint", InfoJson(merged->info)},
                           {"already_there", merged->already_there},
                           {"bytes", merged->bytes},
                           {"deduplicated", merged->deduplicated},
                           {"renamed_files", Texts(merged->renamed_files)}};
  return out;
}

Result<Output> Compact(const CompactOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const OpenedRepository opened, OpenRepository(options.directory));
  ASSIGN_OR_RETURN(const Selected selected, Select(opened.view, options.directory, options.which));
  if (!selected.note.empty()) console->Note("note: " + selected.note);
  console->CatchInterrupts();
  ProgressBar bar("compact", console->clock(), console->progress_enabled());
  auto compacted = CompactIn(opened.env, {.step = {}, .id = selected.checkpoint->manifest->id},
                             console->Control(&bar), options.takeover);
  bar.Clear();
  if (!compacted.ok()) return compacted.status();
  Output out;
  if (compacted->already_full) {
    out.text = "Nothing to do: " + Described(compacted->info) + " is a full checkpoint.\n";
  } else {
    out.text = fmt::format("Put {} together: {} is a full checkpoint now, {} written.\n",
                           Counted(compacted->chain.size(), "checkpoint"),
                           Described(compacted->info), HumanBytes(compacted->bytes));
    out.text += compacted->replaced_removed
                    ? "The increment is gone; what it stood on stays until the retention of the "
                      "next training, or `cairn checkpoint rm`, takes it.\n"
                    : "The increment was pinned meanwhile and stays as well.\n";
  }
  out.json = Value::Object{{"checkpoint", InfoJson(compacted->info)},
                           {"already_full", compacted->already_full},
                           {"chain", Texts(compacted->chain)},
                           {"replaced_removed", compacted->replaced_removed},
                           {"bytes", compacted->bytes}};
  return out;
}

/// Adds what builds on the chosen ones, or refuses by name.
Status CloseOver(const RepositoryView& view, bool increments,
                 std::vector<const Checkpoint*>* chosen) {
  const ChainIndex index(view.checkpoints);
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts) continue;
    const auto is_chosen = [&](const Checkpoint* one) {
      return std::find(chosen->begin(), chosen->end(), one) != chosen->end();
    };
    const auto chain = index.Resolve(checkpoint);
    if (is_chosen(&checkpoint) || !chain.ok()) continue;
    const auto below = std::find_if(chain->begin(), chain->end(), is_chosen);
    if (below == chain->end()) continue;
    if (!increments) {
      const std::string id = (*below)->manifest->id;
      return FailedPreconditionError(
          fmt::format("{} is what {} build on; remove those too (name them, or add --increments)",
                      (*below)->directory, DependentsOf(id, view.checkpoints)));
    }
    if (checkpoint.pinned) {
      return FailedPreconditionError(fmt::format("{} builds on {} and is pinned; unpin it first",
                                                 checkpoint.directory, (*below)->directory));
    }
    chosen->push_back(&checkpoint);
  }
  return Status::Ok();
}

Result<Output> Remove(const RemoveOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const OpenedRepository opened, OpenRepository(options.directory));
  const RepositoryView& view = opened.view;
  std::vector<const Checkpoint*> chosen;
  std::uint64_t bytes = 0;
  std::string list;
  std::vector<std::string> missing;
  Status none;
  for (const std::string& word : options.which) {
    const auto found = Select(view, options.directory, word);
    if (found.status().Is(Code::kNotFound)) {
      // The same command again, after it was interrupted, goes on with the rest.
      if (std::find(missing.begin(), missing.end(), word) == missing.end()) missing.push_back(word);
      none = found.status();
      continue;
    }
    ASSIGN_OR_RETURN(const Selected selected, found);
    const Checkpoint* checkpoint = selected.checkpoint;
    if (std::find(chosen.begin(), chosen.end(), checkpoint) != chosen.end()) continue;
    const CheckpointInfo info = MakeInfo(*opened.env.store, *checkpoint);
    if (checkpoint->foreign || !checkpoint->counts) {
      return FailedPreconditionError(
          fmt::format("{} {}, and the engine removes only its own; delete \"{}\" by hand",
                      checkpoint->directory,
                      checkpoint->foreign ? "is another job's" : "does not count", info.path));
    }
    if (checkpoint->pinned) {
      return FailedPreconditionError(
          fmt::format("step {} ({}) is pinned; unpin it first: cairn checkpoint unpin {} {}",
                      info.step, ShortId(info.id), options.directory, ShortId(info.id)));
    }
    if (!selected.note.empty()) console->Note("note: " + selected.note);
    chosen.push_back(checkpoint);
  }
  if (chosen.empty()) return none;
  RETURN_IF_ERROR(CloseOver(view, options.increments, &chosen));
  for (const Checkpoint* checkpoint : chosen) {
    const CheckpointInfo info = MakeInfo(*opened.env.store, *checkpoint);
    bytes += info.bytes;
    list += "  " + Described(info) + (checkpoint == view.Latest() ? ", the latest" : "") + "\n";
  }
  if (!options.yes) {
    const std::string without =
        "rm asks before it removes, and there is no terminal to ask on; "
        "repeat the command with --yes";
    if (console->progress_enabled()) console->Note("To be removed from " + options.directory + ":");
    if (console->progress_enabled() && !console->json()) std::fputs(list.c_str(), stderr);
    ASSIGN_OR_RETURN(const bool yes, console->Ask("Remove " + Counted(chosen.size(), "checkpoint") +
                                                      ", " + HumanBytes(bytes) + "?",
                                                  without));
    if (!yes) return CancelledError("nothing was removed");
  }

  console->CatchInterrupts();
  ManagerOptions manager_options;
  manager_options.directory = options.directory;
  manager_options.retention.keep_last.reset();
  manager_options.pool_bytes = 0;
  manager_options.takeover = options.takeover;
  ASSIGN_OR_RETURN(manager_options.run, NewestRun(opened.env));
  Environment env = opened.env;
  env.frees_room = true;
  env.tool = true;
  ASSIGN_OR_RETURN(const auto manager, OpenManager(std::move(manager_options), env));
  // Newest first: increments before what they build on.
  std::sort(chosen.begin(), chosen.end(), std::greater<>());
  std::vector<CheckpointInfo> removed;
  Status status;
  for (const Checkpoint* checkpoint : chosen) {
    if (Console::interrupted()) status = CancelledError("interrupted");
    if (status.ok()) status = manager->Delete(checkpoint->manifest->id);
    if (!status.ok()) break;
    removed.push_back(MakeInfo(*opened.env.store, *checkpoint));
  }
  const Status closed = manager->Close();
  if (status.ok()) status = closed;
  if (!status.ok()) {
    std::string done;
    for (const CheckpointInfo& info : removed) {
      done += (done.empty() ? "" : ", ") + std::to_string(info.step);
    }
    if (done.empty()) return status;
    return Status(status.code(), std::string(status.message()) + " (removed before: " + done + ")");
  }
  Output out;
  for (const CheckpointInfo& info : removed) out.text += "Removed " + Described(info) + "\n";
  Value::List not_there;
  for (const std::string& word : missing) {
    out.text += "Not there (any more): " + Printable(word) + "\n";
    not_there.emplace_back(word);
  }
  out.json = Value::Object{{"removed", Infos(removed)}, {"not_there", std::move(not_there)}};
  out.exit_code = missing.empty() ? 0 : 1;
  return out;
}

Result<Output> Pin(const PinOptions& options, bool pin, Console* console) {
  ASSIGN_OR_RETURN(const OpenedRepository opened, OpenRepository(options.directory));
  ASSIGN_OR_RETURN(const Selected selected, Select(opened.view, options.directory, options.which));
  if (!selected.note.empty()) console->Note("note: " + selected.note);
  const Checkpoint& checkpoint = *selected.checkpoint;
  Output out;
  CheckpointInfo info = MakeInfo(*opened.env.store, checkpoint);
  if (checkpoint.pinned == pin) {
    out.text = fmt::format("{} is {} pinned.\n", Described(info), pin ? "already" : "not");
  } else {
    ManagerOptions reading;
    reading.directory = options.directory;
    reading.read_only = true;
    ASSIGN_OR_RETURN(const auto manager, OpenManager(std::move(reading), opened.env));
    RETURN_IF_ERROR(pin ? manager->Pin(info.id) : manager->Unpin(info.id));
    info.pinned = pin;
    out.text =
        pin ? fmt::format("Pinned {}: no retention rule removes it until it is unpinned.\n",
                          Described(info))
            : fmt::format("Unpinned {}: retention rules apply to it again.\n", Described(info));
  }
  out.json = Value::Object{{"checkpoint", InfoJson(info)}};
  return out;
}

Result<Output> Gc(const GcOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const OpenedRepository opened, OpenRepository(options.directory));
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const GarbageReport report, CollectGarbageIn(opened.env, options.takeover));
  Output out;
  Value::List rows;
  TextTable table({{"FREED", TextTable::Align::kRight}, {"NAME"}, {"WHAT IT WAS"}});
  for (const GarbageReport::Item& item : report.removed) {
    table.AddRow({HumanBytes(item.bytes), Printable(item.name), item.what});
    rows.emplace_back(
        Value::Object{{"name", item.name}, {"what", item.what}, {"bytes", item.bytes}});
  }
  out.text = table.empty() ? "Nothing to sweep.\n"
                           : table.Render() + "\n" + HumanBytes(report.bytes) + " freed.\n";
  out.json = Value::Object{{"removed", std::move(rows)}, {"bytes", report.bytes}};
  return out;
}

}  // namespace cairn::cli
