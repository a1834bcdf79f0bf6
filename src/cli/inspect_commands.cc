#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/names.h"
#include "checkpoint/unfinished.h"
#include "cli/checkpoint_commands.h"
#include "cli/output.h"
#include "cli/selection.h"
#include "format/json.h"
#include "format/safetensors.h"

namespace cairn::cli {
namespace {

using Align = TextTable::Align;

constexpr std::size_t kShownRows = 20;
constexpr std::size_t kShownMetrics = 4;

/// Bytes of a checkpoint that other checkpoints hold too: linked, or referred to.
std::uint64_t SharedBytes(Store* store, const Checkpoint& checkpoint, double* on_disk) {
  std::uint64_t shared = 0;
  for (const ManifestFile& file : checkpoint.manifest->files) {
    if (!file.ref.empty()) {
      shared += file.hash.bytes;
      continue;
    }
    const auto links = store->LinkCount(names::Path(checkpoint.directory, file.path));
    const std::uint64_t count = links.ok() ? std::max<std::uint64_t>(*links, 1) : 1;
    if (count > 1) shared += file.hash.bytes;
    // Over all of the file's names this adds up to its bytes once.
    *on_disk += static_cast<double>(file.hash.bytes) / static_cast<double>(count);
  }
  return shared;
}

std::string Flags(const Checkpoint& checkpoint, bool latest) {
  std::string flags;
  const auto add = [&](std::string_view flag) {
    flags += (flags.empty() ? "" : ", ") + std::string(flag);
  };
  if (latest) add("latest");
  if (checkpoint.pinned) add("pinned");
  if (checkpoint.foreign) add("foreign: another job's");
  if (checkpoint.removed) {
    add("being removed");
  } else if (!checkpoint.foreign && !checkpoint.counts) {
    add("does not count");
  }
  return flags;
}

/// Over all tables.
std::uint64_t SumOf(const CheckpointInfo& info, std::uint64_t TableFacts::* member) {
  std::uint64_t sum = 0;
  for (const TableFacts& table : info.tables) sum += table.*member;
  return sum;
}

std::string BrokenFlag(const ChainIndex& index, const Checkpoint& checkpoint) {
  if (!checkpoint.counts || index.Resolve(checkpoint).ok()) return "";
  return " BROKEN: what it builds on is gone";
}

struct TensorRow {
  std::string name;
  const StoredTensor* tensor = nullptr;
  std::string group;  // "model", "table", "state"
  std::uint64_t bytes = 0;
};

/// All tensors of a checkpoint, and what keeps them alive.
struct Contents {
  std::unique_ptr<OpenCheckpoint> open;
  std::vector<std::unique_ptr<TensorMap>> maps;
  std::vector<TensorRow> rows;
};

Status AddGroup(Contents* contents, TensorGroup group, const std::string& participant,
                const std::string& label) {
  ASSIGN_OR_RETURN(TensorMap map, contents->open->ReadCatalog(group, participant));
  contents->maps.push_back(std::make_unique<TensorMap>(std::move(map)));
  for (const auto& [name, tensor] : *contents->maps.back()) {
    ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(tensor.dtype, tensor.shape));
    contents->rows.push_back(
        {participant.empty() ? name : names::Path(participant, name), &tensor, label, bytes});
  }
  return Status::Ok();
}

Result<Contents> ReadContents(const SelectedCheckpoint& selected) {
  Contents contents;
  const Manifest& manifest = *selected.checkpoint.manifest;
  ASSIGN_OR_RETURN(contents.open,
                   OpenCheckpoint::Open(selected.env.store.get(), selected.checkpoint.directory,
                                        selected.checkpoint.manifest));
  RETURN_IF_ERROR(AddGroup(&contents, TensorGroup::kModel, "", "model"));
  const std::set<std::string> participants(manifest.participants.begin(),
                                           manifest.participants.end());
  for (const std::string& participant : participants) {
    RETURN_IF_ERROR(AddGroup(&contents, TensorGroup::kTable, participant, "table"));
    RETURN_IF_ERROR(AddGroup(&contents, TensorGroup::kState, participant, "state"));
  }
  return contents;
}

std::string ShapeText(const std::vector<std::uint64_t>& shape) {
  return "[" + EncodeDims(shape) + "]";
}

Value ShapeJson(const std::vector<std::uint64_t>& shape) {
  Value::List list;
  for (const std::uint64_t extent : shape) list.emplace_back(extent);
  return list;
}

std::string RestOf(std::size_t total, std::size_t shown, std::string_view what) {
  if (total <= shown) return "";
  return fmt::format("… and {} more {}; --all shows them\n", total - shown, what);
}

}  // namespace

Result<Output> List(const LsOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const OpenedRepository opened, OpenRepository(options.directory));
  const RepositoryView& view = opened.view;
  Store* store = opened.env.store.get();
  const Checkpoint* latest = view.Latest();
  const std::int64_t now = console->clock()->WallNanos();

  TextTable table({{"STEP", Align::kRight},
                   {"KIND"},
                   {"SIZE", Align::kRight},
                   {"SHARED", Align::kRight},
                   {"ROWS", Align::kRight},
                   {"DELETED", Align::kRight},
                   {"AGE", Align::kRight},
                   {"ID"},
                   {"BASE"},
                   {"PARENT"},
                   {"METRICS"},
                   {"NOTES"}});
  Value::List rows;
  std::uint64_t counted = 0;
  std::uint64_t bytes = 0;
  double on_disk = 0;
  bool increments = false;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    increments = increments || checkpoint.manifest->kind == CheckpointKind::kIncrement;
  }
  const ChainIndex index(view.checkpoints);
  for (const Checkpoint& checkpoint : view.checkpoints) {
    const bool listed = checkpoint.counts || (checkpoint.foreign && !checkpoint.removed);
    if (!listed && !options.all) continue;
    const CheckpointInfo info = MakeInfo(*store, checkpoint);
    const std::uint64_t shared = SharedBytes(store, checkpoint, &on_disk);
    if (checkpoint.counts) ++counted;
    bytes += info.bytes;
    const bool increment = !info.base.empty();
    table.AddRow({std::to_string(info.step), increments ? info.kind : "", HumanBytes(info.bytes),
                  shared > 0 ? HumanBytes(shared) : "",
                  info.tables.empty() ? "" : std::to_string(SumOf(info, &TableFacts::rows)),
                  increment ? std::to_string(SumOf(info, &TableFacts::deleted)) : "",
                  HumanAge(now - info.time), ShortId(info.id), ShortId(info.base),
                  increment ? ShortId(info.parent) : "", MetricsText(info.metrics, kShownMetrics),
                  Flags(checkpoint, &checkpoint == latest) + BrokenFlag(index, checkpoint)});
    Value::Object row = InfoJson(info);
    row["latest"] = &checkpoint == latest;
    row["counts"] = checkpoint.counts;
    row["bytes_shared"] = shared;
    rows.emplace_back(std::move(row));
  }

  Output out;
  if (table.empty()) {
    out.text = "No checkpoints yet in " + Printable(options.directory) + ".\n";
  } else {
    out.text = table.Render() + "\n" + Counted(counted, "checkpoint") + ", " + HumanBytes(bytes);
    const auto disk = static_cast<std::uint64_t>(on_disk);
    if (disk < bytes - bytes / 100) {
      out.text += " (" + HumanBytes(disk) + " on the disk: unchanged files are shared)";
    }
    out.text += "\n";
  }
  Value::List damaged;
  for (const DamagedCheckpoint& item : view.damaged) {
    out.text +=
        "Damaged: " + Printable(item.directory) + ": " + Printable(item.status.message()) + "\n";
    damaged.emplace_back(Value::Object{{"directory", item.directory},
                                       {"problem", std::string(item.status.message())}});
  }
  Value::List unfinished;
  for (const std::string& directory : UnfinishedDirectories(view)) {
    out.text += (unfinished.empty() ? "Unfinished: " : ", ") + Printable(directory);
    unfinished.emplace_back(directory);
  }
  if (!unfinished.empty()) {
    out.text += " (being saved now, or left by a crash: `cairn checkpoint gc` removes those)\n";
  }
  out.json = Value::Object{{"repository", store->Describe()},
                           {"job", view.record.job},
                           {"checkpoints", std::move(rows)},
                           {"damaged", std::move(damaged)},
                           {"unfinished", std::move(unfinished)}};
  return out;
}

Result<Output> Show(const ShowOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const SelectedCheckpoint selected, SelectIn(options.directory, options.which));
  const Checkpoint& checkpoint = selected.checkpoint;
  const Manifest& manifest = *checkpoint.manifest;
  const CheckpointInfo info = MakeInfo(*selected.env.store, checkpoint);
  if (!selected.note.empty()) console->Note("note: " + selected.note);

  Output out;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"step", std::to_string(info.step)},
      {"id", info.id},
      {"kind", info.kind + (info.chain.empty() ? "" : ", " + info.chain)},
      {"path", Printable(info.path)},
      {"size", HumanBytes(info.bytes) + " in " + Counted(manifest.files.size(), "file")},
      {"saved",
       UtcTime(info.time) + " (" + HumanAge(console->clock()->WallNanos() - info.time) + " ago)"},
      {"job", Printable(manifest.job)},
      {"generation", fmt::format("{}, commit {} of it", info.generation, info.sequence)},
      {"parent", Printable(info.parent)},
      {"base", Printable(info.base)},
      {"notes", Flags(checkpoint, selected.latest)}};
  std::string participants;
  for (const std::string& name : manifest.participants) {
    participants += (participants.empty() ? "" : ", ") + Printable(name);
  }
  facts.emplace_back("saved by", participants);
  for (const auto& [name, value] : {std::pair<std::string, const Value*>{"metrics", &info.metrics},
                                    {"counters", &info.counters},
                                    {"metadata", &info.metadata},
                                    {"lineage", &manifest.lineage}}) {
    const auto* object = value->if_object();
    if (object == nullptr || object->empty()) continue;
    facts.emplace_back(name, Printable(EncodeJson(*value)));
  }
  if (!manifest.replaces.empty()) facts.emplace_back("replaces", Printable(manifest.replaces));
  for (const auto& [name, text] : facts) {
    if (!text.empty()) out.text += fmt::format("{:<11} {}\n", name, text);
  }
  TextTable sparse({{"TABLE"},
                    {"TYPE"},
                    {"DIM", Align::kRight},
                    {"ROWS", Align::kRight},
                    {"DELETED", Align::kRight}});
  for (const TableFacts& table : info.tables) {
    sparse.AddRow({Printable(table.name), std::string(DTypeName(table.dtype)),
                   std::to_string(table.dim), std::to_string(table.rows),
                   info.base.empty() ? "" : std::to_string(table.deleted)});
  }
  if (!sparse.empty()) out.text += "\n" + sparse.Render();

  Value::List files;
  TextTable file_table({{"BYTES", Align::kRight}, {"FILE"}, {"NOTE"}});
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    files.emplace_back(EncodeManifestFile(file));
    if (Value::Object* object = files.back().if_object()) object->erase("chunks");
    if (!options.all && i >= kShownRows) continue;
    std::string note;
    if (!file.ref.empty()) {
      note = "bytes in " + Printable(file.ref);
    } else {
      const auto links =
          selected.env.store->LinkCount(names::Path(checkpoint.directory, file.path));
      if (links.status().Is(Code::kNotFound)) note = "MISSING";
      if (links.ok() && *links > 1) note = fmt::format("shared by {} checkpoints", *links);
    }
    file_table.AddRow({HumanBytes(file.hash.bytes), Printable(file.path), note});
  }

  Value::List tensors;
  auto contents = ReadContents(selected);
  if (contents.ok()) {
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> dtypes;  // count, bytes
    TextTable table({{"TENSOR"}, {"TYPE"}, {"SHAPE"}, {"BYTES", Align::kRight}, {"WHERE"}});
    for (std::size_t i = 0; i < contents->rows.size(); ++i) {
      const TensorRow& row = contents->rows[i];
      const std::string dtype(DTypeName(row.tensor->dtype));
      const std::size_t pieces = row.tensor->pieces.size();
      if (console->json()) {
        tensors.emplace_back(Value::Object{{"name", row.name},
                                           {"dtype", dtype},
                                           {"shape", ShapeJson(row.tensor->shape)},
                                           {"bytes", row.bytes},
                                           {"group", row.group},
                                           {"pieces", static_cast<std::uint64_t>(pieces)}});
        continue;
      }
      if (!options.all && i >= kShownRows) continue;
      std::string where = row.group == "model" ? "" : row.group;
      if (pieces > 1) where += (where.empty() ? "" : ", ") + Counted(pieces, "piece");
      table.AddRow(
          {Printable(row.name), dtype, ShapeText(row.tensor->shape), HumanBytes(row.bytes), where});
    }
    if (!table.empty()) {
      out.text +=
          "\n" + table.Render() +
          RestOf(contents->rows.size(), options.all ? ~std::size_t{0} : kShownRows, "tensors");
    }
  }
  if (!file_table.empty()) {
    out.text += "\n" + file_table.Render() +
                RestOf(manifest.files.size(), options.all ? ~std::size_t{0} : kShownRows, "files");
  }
  Value::Object json = InfoJson(info);
  json["latest"] = selected.latest;
  json["counts"] = checkpoint.counts;
  json["job"] = manifest.job;
  json["lineage"] = manifest.lineage;
  json["files"] = std::move(files);
  json["tensors"] = std::move(tensors);
  json["problem"] = contents.ok() ? Value() : Value(std::string(contents.status().message()));
  if (!contents.ok()) {
    out.text += "\nDamaged: " + Printable(contents.status().message()) +
                "\n(`cairn checkpoint verify` lists everything that is wrong)\n";
    out.exit_code = 1;
  }
  out.json = std::move(json);
  return out;
}

Result<Output> VerifyAll(const VerifyOptions& options, Console* console) {
  if (!IsCheckpointDirectory(options.directory)) {
    // The better words for a directory that is no repository.
    RETURN_IF_ERROR(OpenRepository(options.directory).status());
  }
  ProgressBar bar("verify", console->clock(), console->progress_enabled());
  auto verified = Verify(options.directory, !options.fast, bar.callback());
  bar.Clear();
  if (!verified.ok()) return verified.status();
  const VerifyReport& report = *verified;

  std::map<std::string, int> bad;
  for (const VerifyProblem& problem : report.problems) ++bad[problem.checkpoint];
  Output out;
  TextTable table({{"STEP", Align::kRight}, {"ID"}, {"SIZE", Align::kRight}, {"RESULT"}});
  Value::List rows;
  for (const CheckpointInfo& info : report.checkpoints) {
    const auto it = bad.find(info.path.substr(info.path.rfind('/') + 1));
    const bool ok = it == bad.end();
    table.AddRow({std::to_string(info.step), ShortId(info.id), HumanBytes(info.bytes),
                  ok ? "ok" : "DAMAGED"});
    Value::Object row = InfoJson(info);
    row["ok"] = ok;
    rows.emplace_back(std::move(row));
  }
  if (!table.empty()) out.text = table.Render() + "\n";
  Value::List problems;
  for (const VerifyProblem& problem : report.problems) {
    out.text += "Problem: " + Printable(problem.checkpoint) + ": " + Printable(problem.what) + "\n";
    problems.emplace_back(
        Value::Object{{"checkpoint", problem.checkpoint}, {"what", problem.what}});
  }
  out.text += Counted(report.checkpoints.size(), "checkpoint") + ", " +
              Counted(report.files, "file") + ", ";
  out.text += options.fast ? "present with their sizes" : HumanBytes(report.bytes) + " compared";
  if (report.ok()) {
    out.text += options.fast ? ": no problem found. Without --fast every byte is compared.\n"
                             : ": all as it was written.\n";
  } else {
    out.text += ": " + Counted(report.problems.size(), "problem") +
                ".\nA restore passes over damaged checkpoints and takes the newest whole one; copy "
                "a whole one from a backup, or remove the damaged with `cairn checkpoint rm`. One "
                "whose manifest.json is damaged is no checkpoint any more: delete its directory.\n";
    out.exit_code = 1;
  }
  out.json = Value::Object{{"ok", report.ok()},
                           {"deep", !options.fast},
                           {"checkpoints", std::move(rows)},
                           {"problems", std::move(problems)},
                           {"files", report.files},
                           {"bytes", report.bytes}};
  return out;
}

Result<Output> DiffTwo(const DiffOptions& options, Console* console) {
  SelectedCheckpoint a;
  SelectedCheckpoint b;
  if (options.words.size() == 3) {
    ASSIGN_OR_RETURN(a, SelectIn(options.words[0], options.words[1]));
    ASSIGN_OR_RETURN(b, SelectIn(options.words[0], options.words[2]));
  } else {
    ASSIGN_OR_RETURN(a, SelectIn(options.words[0], ""));
    ASSIGN_OR_RETURN(b, SelectIn(options.words[1], ""));
  }
  for (const SelectedCheckpoint* one : {&a, &b}) {
    if (!one->note.empty()) console->Note("note: " + one->note);
  }
  const CheckpointInfo from = MakeInfo(*a.env.store, a.checkpoint);
  const CheckpointInfo to = MakeInfo(*b.env.store, b.checkpoint);
  ProgressBar bar("diff", console->clock(), console->progress_enabled());
  auto differences = Diff(from.path, to.path, bar.callback());
  bar.Clear();
  if (!differences.ok()) return differences.status();

  Output out;
  out.text =
      fmt::format("from  step {} ({})  {}\nto    step {} ({})  {}\n", from.step, ShortId(from.id),
                  Printable(from.path), to.step, ShortId(to.id), Printable(to.path));
  TextTable table({{"CHANGE"},
                   {"TENSOR"},
                   {"MAX |DIFFERENCE|", Align::kRight},
                   {"ELEMENTS THAT DIFFER", Align::kRight}});
  Value::List rows;
  std::map<std::string, std::uint64_t> counts;
  for (std::size_t i = 0; i < differences->size(); ++i) {
    const TensorDifference& difference = (*differences)[i];
    ++counts[difference.what];
    const bool changed = difference.what == "changed";
    rows.emplace_back(Value::Object{{"name", difference.name},
                                    {"what", difference.what},
                                    {"max_abs", changed ? Value(difference.max_abs) : Value()},
                                    {"elements", changed ? Value(difference.elements) : Value()}});
    const bool by_rows = difference.what == "rows";
    if (by_rows) {
      Value::Object& row = *rows.back().if_object();
      row["rows_added"] = difference.rows_added;
      row["rows_removed"] = difference.rows_removed;
      row["rows_changed"] = difference.rows_changed;
    }
    if (!options.all && i >= kShownRows) continue;
    table.AddRow(
        {difference.what == "shape" || difference.what == "dtype" ? "other " + difference.what
                                                                  : difference.what,
         Printable(difference.name), changed ? fmt::format("{:.6g}", difference.max_abs) : "",
         changed ? std::to_string(difference.elements)
         : by_rows
             ? fmt::format("{} rows: {} changed, {} added, {} removed", difference.elements,
                           difference.rows_changed, difference.rows_added, difference.rows_removed)
             : ""});
  }
  if (table.empty()) {
    out.text += "\nNo difference: every tensor is the same, bit for bit.\n";
  } else {
    out.text += "\n" + table.Render() +
                RestOf(differences->size(), options.all ? ~std::size_t{0} : kShownRows, "tensors") +
                "\n";
    std::string summary;
    for (const auto& [what, count] : counts) {
      summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", count,
                             what == "shape" || what == "dtype" ? "of another " + what
                             : what == "rows"                   ? "in its rows"
                                                                : what);
    }
    out.text += Counted(differences->size(), "tensor") +
                (differences->size() == 1 ? " differs: " : " differ: ") + summary + "\n";
    if (options.exit_code) out.exit_code = 1;
  }
  out.json = Value::Object{
      {"from", InfoJson(from)}, {"to", InfoJson(to)}, {"differences", std::move(rows)}};
  return out;
}

}  // namespace cairn::cli
