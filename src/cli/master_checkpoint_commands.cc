#include "cli/master_checkpoint_commands.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "cli/output.h"

namespace cairn::cli {
namespace {

constexpr auto kLook = std::chrono::milliseconds(200);

Value::List Texts(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

}  // namespace

Result<Output> RemoveMasterCheckpoints(const RemoveCheckpointsOptions& options, bool trial,
                                       Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Value::Object body{{"globs", Texts(options.globs)},
                     {trial ? "trial" : "experiment", options.id},
                     {"dry_run", true}};
  const std::string path = "/api/v1/checkpoints/rm";
  Output output;
  ASSIGN_OR_RETURN(output.json, master->Send("POST", path, Value(body)));
  const std::size_t count =
      ListIn(output.json, "removed").size() + ListIn(output.json, "left_to_run").size();
  const auto bytes = static_cast<std::uint64_t>(IntIn(output.json, "bytes"));
  bool sure = !options.dry_run && count > 0;
  if (sure && !options.yes) {
    ASSIGN_OR_RETURN(
        sure, console->Ask(
                  fmt::format("Remove {} ({})?", Counted(count, "checkpoint"), HumanBytes(bytes)),
                  "removing asks first, and there is no terminal: --yes says that you "
                  "are sure"));
  }
  if (sure) {
    body["dry_run"] = false;
    ASSIGN_OR_RETURN(output.json, master->Send("POST", path, Value(body)));
  }
  for (const Value& id : ListIn(output.json, "removed")) {
    if (id.if_string() == nullptr) continue;
    output.text +=
        fmt::format("{} {}\n", sure ? "removed" : "would remove", Printable(*id.if_string()));
  }
  for (const Value& id : ListIn(output.json, "left_to_run")) {
    if (id.if_string() == nullptr) continue;
    output.text += fmt::format("{} {}: its trial runs, and removes it with its next checkpoint\n",
                               sure ? "asked for" : "would ask for", Printable(*id.if_string()));
  }
  for (const Value& one : ListIn(output.json, "kept")) {
    output.text += fmt::format("kept {}: {}\n", Printable(TextIn(one, "id")),
                               Printable(TextIn(one, "reason")));
  }
  if (output.text.empty()) output.text = "no checkpoint fits\n";
  return output;
}

Result<Output> PinMasterCheckpoints(const MasterCheckpointsOptions& options, bool pinned,
                                    Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Output output;
  Value::List changed;
  for (const std::string& id : options.ids) {
    ASSIGN_OR_RETURN(Value one,
                     master->Send("PATCH", CheckpointPath(id), Value::Object{{"pinned", pinned}}));
    output.text += fmt::format("{} {}\n", pinned ? "pinned" : "unpinned", Printable(id));
    changed.push_back(std::move(one));
  }
  output.json = Value::Object{{"checkpoints", std::move(changed)}};
  return output;
}

Result<Output> VerifyMasterCheckpoints(const MasterCheckpointsOptions& options, Console* console) {
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Output output;
  Value::Object found;
  for (const std::string& id : options.ids) {
    const std::string path = CheckpointPath(id, "/verify");
    ASSIGN_OR_RETURN(Value now, master->Send("POST", path));
    while (TextIn(now, "state") == "RUNNING") {
      if (Console::interrupted()) return CancelledError("the master goes on verifying");
      console->clock()->Sleep(kLook);
      ASSIGN_OR_RETURN(now, master->Get(path));
    }
    const std::string state = TextIn(now, "state");
    output.text += fmt::format("{} {} ({})\n", Printable(id), state == "GOOD" ? "is good" : state,
                               HumanBytes(static_cast<std::uint64_t>(IntIn(now, "bytes_done"))));
    for (const Value& problem : ListIn(now, "problems")) {
      if (problem.if_string() != nullptr)
        output.text += "  " + Printable(*problem.if_string()) + "\n";
    }
    if (state != "GOOD") output.exit_code = 1;
    found[id] = std::move(now);
  }
  output.json = Value(std::move(found));
  return output;
}

}  // namespace cairn::cli
