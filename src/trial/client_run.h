#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"

namespace cairn {

class HttpClient;
class TunnelEntry;

struct RunClientOptions {
  /// http://host:port, https://…, unix:/path, or files:/path, a directory that is shared with the
  /// engine's machine (file_tunnel.h). CAIRN_TRIAL_URL.
  std::string url;
  /// Of https:// alone: PEM file of the authority of the engine's certificate (CAIRN_MASTER_CA);
  /// "": the system's.
  std::string ca;
  std::string token;  // of the run (CAIRN_RUN_TOKEN)
  std::string trial;
  std::uint64_t run = 0;
  int rank = 0;
  /// Requests in all before one is given up while the engine is away; waits between them grow to 2
  /// s. 80 is about two minutes.
  int attempts = 80;
  /// How long the engine may hold the question for preemption before it answers that nothing
  /// changed. Its answers are also the heartbeats of this run.
  std::chrono::nanoseconds poll = std::chrono::seconds(30);
  /// False: Open asks nothing and watches for nothing; the caller knows who it is (workers of the
  /// tuner, which are told everything by the answers to their results).
  bool describe = true;
  /// Asked every 50 ms while a call waits for an answer; true ends it with Cancelled. What was sent
  /// may have been taken.
  std::function<bool()> cancelled;
  Clock* clock = Clock::System();  // borrowed
};

/// What a process that joins by itself says about the trial that it is
/// (docs/format/trial_protocol.md, "Detached runs").
struct JoinRequest {
  std::string external_id;
  std::string experiment;  // "": the engine's choice
  Value hparams = Value::Object{};
  int world_size = 1;
  std::string storage;  // "": the engine's
  /// By which a master compares it with others, "": none; of the reports of `metric_group`.
  std::string metric;
  std::string metric_group = "validation";
  bool smaller_is_better = true;
};

/// A checkpoint that was committed.
struct CompletedCheckpoint {
  std::string id;
  std::int64_t steps_completed = 0;
  Value metadata = Value::Object{};
  Value metrics = Value::Object{};
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::string path;
  std::string kind;  // "full", "increment"
  std::string base;  // of an increment: what it builds on
  bool awaits_score = false;
};

/// A run's side of the trial protocol. What a call reports is durable when it returned OK. A
/// request whose answer got lost is sent again as it was, and the engine recognises it.
///
/// Errors as the protocol's table says; Aborted: this run was replaced, and nothing that it sends
/// counts any more. Unavailable and DeadlineExceeded: the engine was away for too long, and the
/// outcome is not known.
///
/// May be called from any thread. Close (and the destructor) end the background question; a copy of
/// the object in a forked process is of no use and does no harm.
class RunClient {
 public:
  /// Asks the engine who this run is.
  static Result<std::unique_ptr<RunClient>> Open(RunClientOptions options);
  /// Becomes a run of a trial; options.token is the token for joining, trial and run are not used.
  static Result<std::unique_ptr<RunClient>> Join(RunClientOptions options, const JoinRequest& join);
  ~RunClient();
  RunClient(const RunClient&) = delete;
  RunClient& operator=(const RunClient&) = delete;

  /// As the engine answered when this was opened.
  const Value& description() const;
  const std::string& trial() const;
  std::uint64_t run() const;
  const std::string& token() const;

  /// This rank has joined.
  Status Ready(int rank, std::int64_t pid, std::string_view host);

  Status Report(std::string_view group, std::int64_t steps_completed, const Value& metrics);
  Status ReportProgress(double progress);
  Status SetStatus(std::string_view status);

  /// A save begins. `id`: the checkpoint's, chosen by the caller.
  Status RegisterCheckpoint(std::string_view id, std::int64_t steps_completed, int ranks,
                            const Value& metadata);
  /// It is committed. Gives the ids of checkpoints that the engine's rules let go: remove them and
  /// call CheckpointDeleted.
  Result<std::vector<std::string>> CompleteCheckpoint(const CompletedCheckpoint& checkpoint);
  Status AbandonCheckpoint(std::string_view id, std::string_view reason);
  Status CheckpointDeleted(std::string_view id);
  /// All that the engine knows of, as the protocol describes them.
  Result<Value> Checkpoints();

  /// The run is to save and exit, or was replaced. A flag that the background sets: no waiting.
  bool preempt() const;
  /// "pause", "cancel", "kill", "replaced", or "".
  std::string preempt_reason() const;
  /// OK when nothing was asked for.
  Status AcknowledgePreemption();

  /// Of a detached run: how it ended.
  Status Exit(int code, std::string_view message);

  /// Lines that the run wrote ("logs" of the protocol). One attempt; `cancelled` as in the options,
  /// in their place. Not durable.
  Status SendLogs(Value::List lines, const std::function<bool()>& cancelled);

  /// POST to a path below this run that the service has beside the protocol's own ("/result").
  Result<Value> Call(const std::string& path, const Value& body);

  void Close();

 private:
  class Impl;
  RunClient(std::shared_ptr<Impl> impl, std::unique_ptr<HttpClient> http,
            std::unique_ptr<TunnelEntry> tunnel);
  static Result<std::unique_ptr<RunClient>> Make(RunClientOptions options);

  std::unique_ptr<TunnelEntry> tunnel_;  // of files: URLs
  // Shared: an answer under way keeps it alive on the HTTP client's thread.
  std::shared_ptr<Impl> impl_;
  std::unique_ptr<HttpClient> http_;  // after impl_: its thread is gone before that is
};

}  // namespace cairn
