#include "cli/log_follow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/status_macros.h"
#include "cli/output.h"
#include "format/json.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kPage = 10'000;
constexpr milliseconds kBetweenTries{500};

MasterClient::Query QueryOf(const LogSelection& selection) {
  MasterClient::Query query;
  if (!selection.level.empty()) query.emplace_back("level", selection.level);
  if (!selection.search.empty()) query.emplace_back("search", selection.search);
  if (selection.rank >= 0) query.emplace_back("rank", std::to_string(selection.rank));
  if (selection.run >= 0) query.emplace_back("run", std::to_string(selection.run));
  return query;
}

/// A line as a terminal would leave it: without what colours it, and of a progress bar that was
/// written over itself the last state.
std::string LeftOnATerminal(std::string_view line) {
  std::string text;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line.substr(at).starts_with("\x1b[")) {
      const std::size_t end = line.find_first_not_of("0123456789;:<=>? !\"#$%&'()*+,-./", at + 2);
      if (end != std::string_view::npos && line[end] >= '@' && line[end] <= '~') {
        at = end;
        continue;
      }
    }
    text += line[at];
  }
  while (text.ends_with('\r')) text.pop_back();
  const std::size_t begin = text.rfind('\r');
  return begin == std::string::npos ? text : text.substr(begin + 1);
}

/// Writes lines; for one trial.
class LinePrinter {
 public:
  LinePrinter(const Value& trial, bool times, bool json)
      : ranks_(IntIn(trial, "world_size", 1) > 1), times_(times), json_(json) {}

  void Print(const Value& line) {
    if (json_) {
      std::fputs((EncodeJson(line) + "\n").c_str(), stdout);
      return;
    }
    std::string text;
    if (times_) {
      text += UtcTime(static_cast<std::int64_t>(NumberIn(line, "time") * 1e9)) + "  ";
    }
    if (ranks_) text += fmt::format("[rank={}] ", IntIn(line, "rank"));
    text += Printable(LeftOnATerminal(TextIn(line, "text"))) + "\n";
    std::fputs(text.c_str(), stdout);
  }

 private:
  const bool ranks_;
  const bool times_;
  const bool json_;
};

/// The last ones: pages are read backwards until there are enough.
Status PrintTail(MasterClient* master, const std::string& path, const LogSelection& selection,
                 LinePrinter* printer) {
  std::vector<Value> found;  // the newest first
  const auto wanted = static_cast<std::size_t>(selection.tail);
  std::int64_t before = 0;
  for (;;) {
    const auto left = static_cast<std::int64_t>(wanted - found.size());
    MasterClient::Query query = QueryOf(selection);
    if (before == 0) {
      query.emplace_back("tail", std::to_string(left));
    } else {
      query.emplace_back("before", std::to_string(before));
      query.emplace_back("limit", std::to_string(std::min(left, kPage)));
    }
    ASSIGN_OR_RETURN(const Value page, master->Get(path, query));
    const Value::List& lines = ListIn(page, "lines");
    found.insert(found.end(), lines.rbegin(), lines.rend());
    before = IntIn(page, "previous");
    if (!BoolIn(page, "more") || found.size() >= wanted || before == 0) break;
  }
  for (auto line = found.rbegin(); line != found.rend(); ++line) printer->Print(*line);
  std::fflush(stdout);
  return Status::Ok();
}

}  // namespace

Status PrintLogs(MasterClient* master, const Value& trial, const LogSelection& selection,
                 Console* console) {
  LinePrinter printer(trial, selection.times, console->json());
  const std::string path = TrialPath(TextIn(trial, "id"), "/logs");
  if (selection.tail >= 0) return PrintTail(master, path, selection, &printer);
  std::int64_t after = 0;
  for (;;) {
    MasterClient::Query query = QueryOf(selection);
    query.emplace_back("after", std::to_string(after));
    query.emplace_back("limit", std::to_string(kPage));
    ASSIGN_OR_RETURN(const Value page, master->Get(path, query));
    for (const Value& line : ListIn(page, "lines")) printer.Print(line);
    std::fflush(stdout);
    // A page without a line is one in which none was found: what follows may have some.
    const std::int64_t next = IntIn(page, "next", after);
    if (!BoolIn(page, "more") || next <= after) return Status::Ok();
    after = next;
  }
}

Result<std::string> FollowLogs(MasterClient* master, const Value& trial,
                               const LogSelection& selection, std::int64_t* position,
                               Console* console) {
  LinePrinter printer(trial, selection.times, console->json());
  const std::string path = TrialPath(TextIn(trial, "id"), "/logs");
  std::int64_t& after = *position;
  std::string state;
  bool told = false;
  for (;;) {
    MasterClient::Query query = QueryOf(selection);
    query.emplace_back("follow", "true");
    if (after >= 0) {
      query.emplace_back("after", std::to_string(after));
    } else if (selection.tail >= 0) {
      query.emplace_back("tail", std::to_string(selection.tail));
    }
    const Status status = master->Follow(path, query, [&](const StreamEvent& event) {
      const auto data = DecodeJson(event.data);
      if (!data.ok()) return true;
      told = false;
      if (event.kind == "end") {
        state = TextIn(*data, "state");
        return false;
      }
      if (event.kind == "log") {
        after = IntIn(*data, "id", after);
        printer.Print(*data);
        std::fflush(stdout);
      }
      return true;
    });
    if (!state.empty()) return state;
    if (Console::interrupted()) return CancelledError("detached");
    // A stream that ended early, or a master that is being started again: go on after the last
    // line.
    if (!status.ok() && !status.Is(Code::kUnavailable)) return status;
    if (!status.ok() && !told) {
      console->Note("the master does not answer now; waiting for it (Ctrl-C detaches)");
      told = true;
    }
    console->clock()->Sleep(kBetweenTries);
  }
}

}  // namespace cairn::cli
