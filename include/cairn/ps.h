#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>
#include <cairn/table.h>

/// Parameter servers: sparse tables and dense variables that live in server processes, trained by
/// several trainer processes, with checkpoints of the whole job. Servers and trainers may die at
/// any moment and are started again by the same command.
///
///   auto client = cairn::ps::Client::Connect(cairn::ps::ClientOptions::FromEnvironment().value());
///   auto* users = (*client)->Table({.name = "users", .dim = 16}).value();
///   for (std::int64_t step = (*client)->step(); step < steps;) {
///     cairn::Status status = Train(step, users);                 // Lookup, ApplyGradients
///     if (status.ok()) status = (*client)->EndStep(state);
///     if (status.Is(cairn::Code::kAborted)) {                    // rolled back: go on from there
///       step = (*client)->step();
///     } else …
///   }
///
/// Linked with the CMake target cairn::ps.
namespace cairn::ps {

/// How gradients meet.
enum class Mode : std::uint8_t {
  kSync,   // those of all trainers are added in the trainers' order and applied once a step:
           // bit-reproducible
  kAsync,  // each push is applied as it comes
};

/// What happens when a process of the job was lost.
enum class Recovery : std::uint8_t {
  kExact,    // all go back to the last checkpoint
  kPartial,  // only a lost server does: what it had taken since is lost, and counted. Nobody else
             // goes back; sync mode is not reproducible then
  kLog,      // nobody does: servers write every change down before they acknowledge it, and a lost
             // one replays them
};

/// What a change has survived when it is acknowledged (Recovery::kLog).
enum class LogLevel : std::uint8_t {
  kWritten,  // the end of the server's process
  kSynced,   // the end of its machine; several trainers' changes share a sync
};

/// Who may connect, and whether others can listen. Empty: anybody, in plain text.
struct Security {
  std::string token;        // the same for servers and trainers
  std::string ca;           // trainers: PEM file of who signed the servers' certificates
  std::string certificate;  // servers: PEM file
  std::string key;          // servers: PEM file
  std::string server_name;  // trainers: the name in the certificate, where it is not the address's
};

/// What a trainer's requests travel over. Servers take both on their one port.
enum class Transport : std::uint8_t {
  kSocket,  // frames over a plain TCP connection; with TLS (Security::ca) gRPC takes its place
  kGrpc,    // a gRPC stream: where only HTTP/2 passes between trainers and servers
};
/// "socket" or "grpc", as in CAIRN_PS_TRANSPORT.
Result<Transport> TransportFromName(const std::string& name);

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0: any free one
  std::string address;                 // that others reach it by, port 0: its own; "": as `listen`
  std::string directory;               // the job's repository: a path or URL, shared by all servers
  int index = 0;                       // of `servers`; 0 leads: it decides when to save
  int servers = 1;
  int trainers = 1;
  Mode mode = Mode::kSync;
  Recovery recovery = Recovery::kExact;
  /// Recovery log: where the update logs are (a path or URL); "": log/ in `directory`. A disk of
  /// its own keeps the writing of checkpoints out of the way. The same after a restart.
  std::string log_directory;
  LogLevel log_level = LogLevel::kWritten;
  /// Between full checkpoints and between increments; nothing: not by it. Both due: a full one.
  std::optional<double> full_secs = 600;
  std::optional<double> incremental_secs;
  std::optional<std::int64_t> full_steps;
  std::optional<std::int64_t> incremental_steps;
  /// Rows of increments with 8 bits a number, about a quarter of the bytes: see CutRequest. A job
  /// that goes back to such an increment goes on with rows that are off by what
  /// Client::QuantizationError told, no longer bit-equal; full checkpoints are always exact. The
  /// same for all servers of a job.
  bool quantize = false;
  std::optional<std::uint64_t> max_to_keep = 3;  // full checkpoints; nullopt: all
  /// The checkpoint of an earlier job (its directory or URL; of a directory of checkpoints the
  /// latest) that a job without any checkpoint of
  /// its own begins with. Each server reads its own slices.
  std::string load;
  Security security;
  std::uint64_t max_message_bytes = std::uint64_t{256} << 20;
  /// Where HTTP answers /metrics (Prometheus) and /healthz: "port" or "host:port", without a host
  /// on this machine alone; port 0: any free one; "": nowhere. Plain HTTP; with a token /metrics
  /// wants it as `Authorization: Bearer`.
  std::string metrics;

  Status Validate() const;
};

/// One server of a job. Any thread.
class Server {
 public:
  /// Listens at once and registers in the repository; meets the other servers, restores and begins
  /// to serve in the background.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options);
  virtual ~Server() = default;

  virtual int port() const = 0;
  /// Of ServerOptions::metrics; 0: nowhere.
  virtual int metrics_port() const = 0;
  /// Returns when the server was stopped, or cannot go on: what is wrong.
  virtual Status Wait() = 0;
  /// Stops serving. What was not saved is lost.
  virtual void Stop() = 0;
  virtual bool serving() const = 0;
  /// As JSON: state, generation, step, tables, saves.
  virtual std::string StatusText() const = 0;
  /// In Prometheus's text format.
  virtual std::string MetricsText() const = 0;
};

/// How rows change: a name of <cairn/optimizer.h> ("sgd", "momentum", "adagrad", "adam", "adamw",
/// "ftrl", "rowwise_adagrad") with those of its settings that differ from the defaults.
struct OptimizerSpec {
  std::string kind = "adagrad";
  std::map<std::string, double> settings;
  friend bool operator==(const OptimizerSpec&, const OptimizerSpec&) = default;
};

/// "constant" (a), "uniform" [a, b), "normal" and "truncated_normal" (mean a, deviation b).
struct InitializerSpec {
  std::string kind = "uniform";
  double a = -0.05;
  double b = 0.05;
  friend bool operator==(const InitializerSpec&, const InitializerSpec&) = default;
};

/// A table as all trainers declare it.
struct TableSpec {
  std::string name;
  std::uint32_t dim = 0;
  DType dtype = DType::kF32;
  OptimizerSpec optimizer;
  InitializerSpec initializer;
  std::uint64_t seed = 0;
  std::optional<std::uint32_t> admission;     // see AdmissionOptions::min_count
  std::optional<std::int64_t> steps_to_live;  // see EvictionOptions and RemoteTable::Evict
  std::optional<double> min_l2_norm;          // likewise
  friend bool operator==(const TableSpec&, const TableSpec&) = default;
};

/// A dense variable as all trainers declare it: float32. The optimizer changes each of its rows
/// (of the first dimension) by itself.
struct DenseSpec {
  std::string name;
  std::vector<std::uint64_t> shape;
  OptimizerSpec optimizer;
  friend bool operator==(const DenseSpec&, const DenseSpec&) = default;
};

struct ClientOptions {
  std::vector<std::string> servers;  // host:port of each, in their order; …
  std::string directory;             // … or the repository, where they are registered
  int num_servers = 0;               // with `directory` alone
  int trainer = 0;                   // of `trainers`; −1: only looks
  int trainers = 1;
  Security security;
  Transport transport = Transport::kSocket;
  std::chrono::milliseconds request_timeout{60'000};     // for an answer, but that of EndStep
  std::chrono::milliseconds reconnect_timeout{600'000};  // for lost servers to come back
  std::uint64_t max_message_bytes = std::uint64_t{256} << 20;
  /// Asked while it waits for lost servers; true ends the wait with Cancelled.
  std::function<bool()> cancelled;

  /// CAIRN_PS_SERVERS, CAIRN_TRAINER_ID, CAIRN_NUM_TRAINERS, CAIRN_CHECKPOINT_DIR and
  /// CAIRN_PS_TOKEN, as `cairn ps run` sets them; CAIRN_PS_CA; CAIRN_PS_TRANSPORT ("socket",
  /// "grpc"). InvalidArgument when there is nothing, or nothing known.
  static Result<ClientOptions> FromEnvironment();
};

/// All rows of a table with their slots, for small tables and tests.
struct TableContent {
  std::vector<std::int64_t> keys;
  std::vector<std::int64_t> frequency;
  std::vector<std::int64_t> version;
  std::vector<float> weights;
  std::vector<float> slots;
};

/// A table on the servers. Belongs to its client and is used as that is.
class RemoteTable {
 public:
  virtual ~RemoteTable() = default;
  virtual const TableSpec& spec() const = 0;
  virtual Status Lookup(std::span<const std::int64_t> ids, std::span<float> out,
                        Missing missing = Missing::kCreate) = 0;
  /// Sync mode: applied when the step ends, with those of the other trainers.
  virtual Status ApplyGradients(std::span<const std::int64_t> ids,
                                std::span<const float> gradients) = 0;
  /// At once, also in sync mode: for one trainer, between steps.
  virtual Status Assign(std::span<const std::int64_t> ids, std::span<const float> values) = 0;
  virtual Result<std::uint64_t> Erase(std::span<const std::int64_t> ids) = 0;
  /// Removes what `steps_to_live` and `min_l2_norm` say, at `step`, on all servers; without either
  /// FailedPrecondition. How much went, where that is known. Async: at once. Sync: when the step
  /// ends, after the gradients of all trainers, and nothing is told. One trainer asks for it, or
  /// all: a table is swept once, at the greatest step that any of them named. Of an answer that was
  /// lost and asked for again the rows are not counted.
  virtual Result<std::optional<EvictReport>> Evict(std::int64_t step) = 0;
  /// Of updates from now on, on all servers; it is part of checkpoints. Not negative, and finite.
  /// Sync: of the step that is under way and all later ones. Every trainer sets it, or one does; of
  /// several in one step the last trainer's counts. Async: at once; one trainer sets it, as of
  /// several at once each server may take another one last. With Recovery::kPartial a server that
  /// was lost comes back with the rate of its checkpoint, for its keys alone, and nothing is told:
  /// set it again when Client::generation() has changed.
  virtual Status SetLearningRate(float rate) = 0;
  /// The one that counts: what was set in a step of sync mode does when that has ended. Asked is
  /// server 0.
  virtual Result<float> LearningRate() = 0;
  virtual Result<std::uint64_t> Size() = 0;
  virtual Result<TableContent> Content() = 0;
};

/// A dense variable on the servers; as RemoteTable.
class RemoteDense {
 public:
  virtual ~RemoteDense() = default;
  virtual const DenseSpec& spec() const = 0;
  virtual Status Pull(std::span<float> out) = 0;
  virtual Status Push(std::span<const float> gradient) = 0;
};

/// A trainer's connection to all servers of its job. For one thread at a time; Cancel from any.
/// Lost connections are made again and what was not answered is sent again; the servers apply it
/// once. When the job went back to a checkpoint meanwhile, the call ends with Aborted: step() and
/// state() then say where to go on, tables and variables stay usable, and nothing of the
/// interrupted step remains.
class Client {
 public:
  /// Waits for all servers (reconnect_timeout).
  static Result<std::unique_ptr<Client>> Connect(ClientOptions options);
  virtual ~Client() = default;

  virtual int servers() const = 0;
  virtual int trainer() const = 0;
  virtual int trainers() const = 0;
  virtual Mode mode() const = 0;
  /// How many steps this trainer completed, as the servers know it.
  virtual std::int64_t step() const = 0;
  /// What this trainer gave with its last completed step; nullopt: nothing yet.
  virtual const std::optional<std::string>& state() const = 0;
  /// How often the job went back since Connect.
  virtual std::uint64_t rollbacks() const = 0;
  virtual std::uint64_t generation() const = 0;

  /// Makes it on first use by any trainer. Mismatch when the servers have another one of that name.
  virtual Result<RemoteTable*> Table(TableSpec spec) = 0;
  /// The values of whoever comes first count, unless a checkpoint has others.
  virtual Result<RemoteDense*> Dense(DenseSpec spec, std::span<const float> initial) = 0;

  /// Ends this trainer's step; `state` (a text, JSON by convention) is what it needs to go on
  /// exactly: position, generators. Sync: returns when all trainers ended theirs and the gradients
  /// are applied.
  virtual Status EndStep(std::string state) = 0;
  /// Replaces what was given with the last completed step. FailedPrecondition before the first.
  virtual Status SetState(std::string state) = 0;
  /// Waits for all trainers.
  virtual Status Barrier() = 0;
  /// Asks for a checkpoint at the end of the next step.
  virtual Status RequestSave(bool full) = 0;
  /// Pulls all tables and variables that this client declared, with their slots, and saves them as
  /// a checkpoint in `directory` (one of its own, a path or URL), which a later job begins with
  /// (ServerOptions::load), whatever its number of servers. The path of the checkpoint. For one
  /// trainer, between steps and while no other pushes; everything passes through its memory.
  virtual Result<std::string> SavePersistables(const std::string& directory) = 0;
  /// This trainer is done: the others go on without it. Afterwards every question to the servers is
  /// FailedPrecondition, also by the client's tables and variables; a second Close is OK.
  virtual Status Close() = 0;
  /// Ends what another thread waits for.
  virtual void Cancel() = 0;

  /// Of the last increment that is over, where its rows were quantized (ServerOptions::quantize):
  /// the greatest error on any server.
  virtual Result<TableCut::Error> QuantizationError() = 0;
  virtual Result<std::string> StatusOf(int server) = 0;
  virtual Result<std::string> MetricsOf(int server) = 0;
};

}  // namespace cairn::ps
