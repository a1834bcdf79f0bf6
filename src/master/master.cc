// How the pieces are put together, in which order they begin and end, and what the data directory
// holds:
//   lock          held by the master that lives here
//   cairn.db      the catalog, unless another database is named
//   token         the local user's token, mode 0600
//   code/         archives of code by their digest
//   work/<id>-…/  the code of an experiment, unpacked: where its trials run
//   runs/         records and logs of runs (docs/format/launches.md)
//   runs-slurm/   the same of runs that Slurm starts; the data directory is shared with its nodes
//   runs-ray/     the same of runs that Ray starts
//   trial.sock    the trial protocol for runs of this machine: the same after every restart
//   checkpoints/  repositories of trials, unless the storage is elsewhere
//   web/          the page, when it is not part of the installation
#include "master/master.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "launch/file_tunnel.h"
#include "launch/launch_directory.h"
#include "launch/local_launcher.h"
#include "launch/ray_launcher.h"
#include "launch/several_launchers.h"
#include "launch/slurm_launcher.h"
#include "master/files.h"
#include "master/web_files.h"
#include "net/http_routes.h"
#include "net/token.h"
#include "trial/trial_service.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

constexpr int kApiThreads = 8;
constexpr std::size_t kMostWaiting = 2000;
constexpr std::size_t kLongestSocketPath = 100;  // of 107
constexpr auto kTidyInterval = std::chrono::seconds(60);
constexpr auto kUnusedCode = std::chrono::hours(24);
/// So many events are read again at most when a master starts.
constexpr std::uint64_t kSummarizeAfter = 50'000;

/// As MasterOptions::advertise.
constexpr char kFiles[] = "files";

/// With those above it. One that is there stays as it is.
Status MakeDirectory(const std::string& path, mode_t mode) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (mkdir(path.c_str(), mode) == 0) return Status::Ok();
  const int failed = errno;
  if (failed == EEXIST && fs::is_directory(path, error)) return Status::Ok();
  return UnavailableError(fmt::format(
      "{}: {}", path, failed == EEXIST ? "it is not a directory" : std::strerror(failed)));
}

std::string_view AccessName(Access access) {
  constexpr std::string_view kNames[] = {"none", "viewer", "user", "admin", "run"};
  return kNames[static_cast<std::size_t>(access)];
}

}  // namespace

bool IsLoopback(std::string_view listen) {
  if (listen.starts_with("unix:")) return true;
  const std::size_t colon = listen.rfind(':');
  const std::string_view host = listen.substr(0, colon);
  return host == "localhost" || host == "[::1]" || host == "::1" || host.starts_with("127.");
}

Status MasterOptions::Validate() const {
  if (data_directory.empty()) return InvalidArgumentError("master: name a data directory");
  if (listen.find(':') == std::string::npos) {
    return InvalidArgumentError(fmt::format(
        "a master listens at host:port, such as 127.0.0.1:8080: \"{}\" has no port", listen));
  }
  if (slots < 0 || slots > 100'000) return InvalidArgumentError("master: slots: 0 to 100000");
  if (!(requests_per_second >= 0)) {
    return InvalidArgumentError("master: requests_per_second must not be negative");
  }
  if (clock == nullptr || ids == nullptr) return InvalidArgumentError("master: clock, ids");
  if (!tls_ca.empty() && tls.empty()) {
    return InvalidArgumentError("master: an authority (tls_ca) without a certificate");
  }
  if (!tls_ca.empty() && access(tls_ca.c_str(), R_OK) != 0) {
    return NotFoundError(fmt::format("TLS: the authority's file \"{}\" cannot be read", tls_ca));
  }
  if (advertise == kFiles && !tls.empty()) {
    return InvalidArgumentError("master: what goes through files does not speak TLS");
  }
  if (!advertise.empty() && advertise != kFiles && !advertise.starts_with("http://") &&
      !advertise.starts_with("https://")) {
    return InvalidArgumentError("master: advertise must be a URL, http://HOST:PORT, or \"files\"");
  }
  return Status::Ok();
}

class Master::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        limit_(options_.requests_per_second, 4 * options_.requests_per_second, options_.clock),
        services_(options_.clock) {}
  ~Impl() { Stop(); }

  Status Start();
  void Stop();

  const std::string& url() const { return server_->url(); }
  Status CheckPage() const { return master::CheckPage(options_.web_directory); }
  std::string token_path() const { return Path("token"); }
  Accounts* accounts() { return accounts_.get(); }

  Result<std::string> LoginLink() {
    ASSIGN_OR_RETURN(const std::int64_t user, LocalAdmin());
    ASSIGN_OR_RETURN(const std::string code, accounts_->NewLoginCode(user));
    // Behind '#': browsers do not send it to anybody.
    return fmt::format("{}/#code={}", url(), code);
  }

  std::vector<RouteInfo> Routes() const {
    std::vector<RouteInfo> out;
    for (const ApiRoute& route : ApiRoutes(Parts())) {
      out.push_back({route.method, route.pattern, std::string(AccessName(route.access))});
    }
    for (const HttpRoute& route : RunRoutes()) {
      const std::string role = route.pattern.ends_with("/healthz") ? "none" : "run";
      out.push_back({route.method, route.pattern, role});
    }
    return out;
  }

 private:
  /// The trial protocol; who joins is judged as a user (trial_routes.cc).
  std::vector<HttpRoute> RunRoutes() const {
    std::vector<HttpRoute> routes = TrialRoutes(engine_.get());
    std::erase_if(routes, [](const HttpRoute& one) { return one.pattern.ends_with("/join"); });
    return routes;
  }
  std::string Path(std::string_view name) const {
    return fmt::format("{}/{}", options_.data_directory, name);
  }

  Status Prepare();
  Status OpenParts();
  Status TellWhetherLost();
  Status StartEngine();
  Status Listen();
  Result<std::int64_t> LocalAdmin();
  Status WriteToken();
  ApiParts Parts() const;
  void OnEvent(const Event& event);
  void OnLaunch(const LaunchInfo& info);
  void NoteBegan(const LaunchInfo& info);
  std::string RestOf(const std::string& trial);
  Value ExperimentNow(const std::string& experiment);
  void ServePage(const ServerRequest& request, const HttpReply& reply);
  void Tidy(const std::stop_token& stop);
  Status TidyOnce();

  Options options_;
  std::string instance_;
  std::string storage_;
  std::string join_token_;  // told to nobody: users join with their own
  RateLimit limit_;
  Services services_;
  OwnedFd lock_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<RepositoryAccess> repositories_ = RepositoryAccess::Real();
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<CodeStore> code_;
  std::unique_ptr<Accounts> accounts_;
  std::unique_ptr<TrialEngine> engine_;
  std::unique_ptr<Experiments> experiments_;
  std::unique_ptr<LogCollector> collector_;
  std::unique_ptr<LogFollowers> followers_;
  std::unique_ptr<EventFeed> feed_;
  std::unique_ptr<WebhookSender> webhooks_;
  std::unique_ptr<Verifications> verifications_;
  std::unique_ptr<NewBytes> new_bytes_;
  std::unique_ptr<TaskThreads> threads_;
  std::unique_ptr<TaskThreads> downloads_;
  std::optional<HttpRoutes> known_;  // to tell 405 from 404 beside the page's files
  std::unique_ptr<HttpServer> runs_server_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<TunnelExit> tunnel_;  // to server_
  Mutex mu_;
  CondVar stopped_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::map<std::string, std::uint64_t> began_ GUARDED_BY(mu_);  // by trial: its run that was noted
  std::atomic<bool> ready_ = false;                             // engine and collector are there
  std::jthread tidy_;
};

Status Master::Impl::Start() {
  RETURN_IF_ERROR(Prepare());
  RETURN_IF_ERROR(OpenParts());
  if (!IsLoopback(options_.listen) && !accounts_->AnyPassword()) {
    return FailedPreconditionError(fmt::format(
        "no user has a password, and {} can be reached from elsewhere: start it on 127.0.0.1, set "
        "one (`cairn user change-password admin`), then listen there",
        options_.listen));
  }
  RETURN_IF_ERROR(StartEngine());
  RETURN_IF_ERROR(Listen());
  // What began, or began and ended, while nobody was here to note it. Before the engine records
  // ends.
  ASSIGN_OR_RETURN(const std::vector<LaunchInfo> launches, launcher_->List());
  for (const LaunchInfo& info : launches) {
    if (info.started != 0) NoteBegan(info);
  }
  RETURN_IF_ERROR(engine_->Start());
  RETURN_IF_ERROR(experiments_->Start());
  RETURN_IF_ERROR(collector_->Start());
  webhooks_->Start();
  RETURN_IF_ERROR(WriteToken());
  tidy_ = std::jthread([this](const std::stop_token& stop) { Tidy(stop); });
  return Status::Ok();
}

Status Master::Impl::Prepare() {
  std::error_code error;
  options_.data_directory =
      fs::absolute(options_.data_directory, error).lexically_normal().string();
  while (options_.data_directory.size() > 1 && options_.data_directory.ends_with('/')) {
    options_.data_directory.pop_back();
  }
  RETURN_IF_ERROR(MakeDirectory(options_.data_directory, 0700));
  auto lock = LockFile(Path("lock"), options_.clock, kLockPatience);
  if (!lock.ok() && !lock.status().Is(Code::kUnavailable)) return lock.status();
  if (!lock.ok()) {
    return UnavailableError(
        fmt::format("another master lives on {}: end it first, or name another --data-dir",
                    options_.data_directory));
  }
  lock_ = *std::move(lock);
  for (const char* name : {"code", "work"}) RETURN_IF_ERROR(MakeDirectory(Path(name), 0700));
  if (options_.slots == 0) {
    options_.slots = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }
  storage_ = options_.storage.empty() ? InDataDirectory("checkpoints") : options_.storage;
  if (options_.web_directory.empty() && fs::is_directory(Path("web"), error)) {
    options_.web_directory = Path("web");
  }
  instance_ = options_.ids->NewUuid();
  return Status::Ok();
}

/// A database that is new beside checkpoints of before is one that somebody lost.
Status Master::Impl::TellWhetherLost() {
  ASSIGN_OR_RETURN(const std::uint64_t last, catalog_->LastEvent());
  ASSIGN_OR_RETURN(const Page<Experiment> known, catalog_->experiments().List({.limit = 1}));
  std::error_code nothing;
  if (last == 0 && known.total == 0 && !fs::is_empty(Path("checkpoints"), nothing) && !nothing) {
    LogWarning(fmt::format(
        "the database is new, and {} has checkpoints of before: put its database back, or stop "
        "this master and take them in, `cairn master reindex --data-dir {}`",
        Path("checkpoints"), options_.data_directory));
  }
  return Status::Ok();
}

Status Master::Impl::OpenParts() {
  ASSIGN_OR_RETURN(catalog_,
                   Catalog::Open({.url = options_.database.empty() ? "sqlite:" + Path("cairn.db")
                                                                   : options_.database,
                                  .takeover = options_.takeover,
                                  .clock = options_.clock,
                                  .ids = options_.ids}));
  RETURN_IF_ERROR(TellWhetherLost());
  ASSIGN_OR_RETURN(accounts_, Accounts::Open({.catalog = &catalog_->accounts(),
                                              .clock = options_.clock,
                                              .weak_hashes = options_.weak_hashes}));
  code_ = std::make_unique<CodeStore>(Path("code"));
  const auto listener = [this](const LaunchInfo& info) { OnLaunch(info); };
  const NamedLauncher local = {.name = "local", .open = [this, listener] {
                                 return OpenLocalLauncher({.directory = Path("runs"),
                                                           .slots = options_.slots,
                                                           .listener = listener,
                                                           .clock = options_.clock});
                               }};
  std::error_code error;
  const NamedLauncher slurm = {
      .name = std::string(kSlurmLauncher),
      .open =
          [this, listener] {
            return OpenSlurmLauncher(
                {.directory = Path("runs-slurm"), .listener = listener, .clock = options_.clock});
          },
      // With runs from before it must know them.
      .at_once = fs::exists(Path("runs-slurm"), error)};
  const NamedLauncher ray = {.name = std::string(kRayLauncher),
                             .open =
                                 [this, listener] {
                                   RayLauncherOptions options = {
                                       .directory = Path("runs-ray"),
                                       .address = options_.ray_address,
                                       .token_file = options_.ray_token_file};
                                   options.listener = listener;
                                   options.clock = options_.clock;
                                   return OpenRayLauncher(std::move(options));
                                 },
                             .at_once = fs::exists(Path("runs-ray"), error)};
  ASSIGN_OR_RETURN(launcher_, OpenSeveralLaunchers({local, slurm, ray}));
  return Status::Ok();
}

Status Master::Impl::StartEngine() {
  ASSIGN_OR_RETURN(join_token_, NewToken());
  ASSIGN_OR_RETURN(engine_,
                   TrialEngine::Open({.log = &catalog_->events(),
                                      .launcher = launcher_.get(),
                                      .repositories = repositories_.get(),
                                      .clock = options_.clock,
                                      .ids = options_.ids,
                                      .data_directory = options_.data_directory,
                                      .shared_storage = true,
                                      .compact_after_events = kSummarizeAfter,
                                      .heartbeat = options_.heartbeat,
                                      .join_token = join_token_,
                                      .join_storage = storage_,
                                      .on_event = [this](const Event& event) { OnEvent(event); },
                                      .on_wait =
                                          [this](const std::string& trial) {
                                            experiments_->OnTrialChanged(trial, true);
                                            feed_->OnTrial(trial);
                                          },
                                      .on_log =
                                          [this](const std::string& trial, std::uint64_t run,
                                                 const Value::List& lines) {
                                            if (collector_ != nullptr)
                                              collector_->Add(trial, run, lines);
                                          }}));
  experiments_ = std::make_unique<Experiments>(
      ExperimentsOptions{.catalog = catalog_.get(),
                         .engine = engine_.get(),
                         .code = code_.get(),
                         .data_directory = options_.data_directory,
                         .default_storage = storage_,
                         .slots = options_.slots,
                         .clock = options_.clock,
                         .ids = options_.ids,
                         .on_change = [this](std::int64_t id, Value::Object what) {
                           feed_->OnExperiment(id, std::move(what));
                           webhooks_->Wake();
                         }});
  collector_ = std::make_unique<LogCollector>(LogCollectorOptions{
      .logs = &catalog_->logs(),
      .launcher = launcher_.get(),
      .clock = options_.clock,
      .run_of = [this](const std::string& launch) -> std::optional<RunId> {
        const auto key = engine_->RunOfLaunch(launch);
        if (!key) return std::nullopt;
        return RunId{key->trial, key->run};
      },
      .settled =
          [this](const std::string& trial, std::uint64_t run) {
            const auto view = engine_->Summary(trial);
            return !view.ok() || view->record.core.run > run || !view->record.core.live;
          }});
  followers_ = std::make_unique<LogFollowers>(
      LogFollowersOptions{.logs = &catalog_->logs(),
                          .clock = options_.clock,
                          .ended = [this](const std::string& trial) { return RestOf(trial); }});
  catalog_->logs().OnAppend([this](const std::string& trial) { followers_->OnChange(trial); });
  feed_ = std::make_unique<EventFeed>(EventFeedOptions{
      .log = &catalog_->events(),
      .engine = engine_.get(),
      .clock = options_.clock,
      .instance = instance_,
      .experiment_of =
          [this](const std::string& trial) { return experiments_->ExperimentOfTrial(trial); },
      .experiment_now = [this](const std::string& id) { return ExperimentNow(id); }});
  ASSIGN_OR_RETURN(webhooks_,
                   WebhookSender::Open({.catalog = catalog_.get(),
                                        .clock = options_.clock,
                                        .experiment_of = [this](const std::string& trial) {
                                          return experiments_->ExperimentOfTrial(trial);
                                        }}));
  verifications_ =
      std::make_unique<Verifications>(options_.clock, [this](const std::string& checkpoint) {
        Value body = verifications_->Get(checkpoint);
        (*body.if_object())["id"] = checkpoint;
        feed_->Publish("verification", std::move(*body.if_object()));
      });
  new_bytes_ = std::make_unique<NewBytes>(NewBytesOptions{
      .clock = options_.clock, .on_found = [this](const std::string& trial, const std::string& id) {
        feed_->OnCheckpoint(trial, id);
      }});
  new_bytes_->Start();
  threads_ = std::make_unique<TaskThreads>(kApiThreads, kMostWaiting);
  downloads_ = std::make_unique<TaskThreads>(4, 100);
  ASSIGN_OR_RETURN(const std::uint64_t last, catalog_->LastEvent());
  feed_->Start(last);
  followers_->Start();
  ready_ = true;
  return Status::Ok();
}

ApiParts Master::Impl::Parts() const {
  return {.catalog = catalog_.get(),
          .engine = engine_.get(),
          .launcher = launcher_.get(),
          .experiments = experiments_.get(),
          .accounts = accounts_.get(),
          .code = code_.get(),
          .feed = feed_.get(),
          .followers = followers_.get(),
          .webhooks = webhooks_.get(),
          .services = const_cast<Services*>(&services_),
          .verifications = verifications_.get(),
          .new_bytes = new_bytes_.get(),
          .threads = threads_.get(),
          .downloads = downloads_.get(),
          .clock = options_.clock,
          .data_directory = options_.data_directory,
          .default_storage = Located(storage_, options_.data_directory),
          .join_token = join_token_,
          .version = options_.version,
          .instance = instance_,
          .web_directory = options_.web_directory,
          .slots = options_.slots,
          .secure = !options_.tls.empty()};
}

Status Master::Impl::Listen() {
  std::vector<ApiRoute> api = ApiRoutes(Parts());
  std::vector<HttpRoute> routes = ServedRoutes(Parts(), std::move(api), &limit_);
  for (HttpRoute& route : RunRoutes()) routes.push_back(std::move(route));
  ASSIGN_OR_RETURN(known_, HttpRoutes::Make(routes));
  // The rest of a path is never empty, so the page's own address is a route of its own.
  for (const char* pattern : {"/", "/{path...}"}) {
    routes.push_back({.method = "GET",
                      .pattern = pattern,
                      .handler = [this](const ServerRequest& request, const HttpReply& reply) {
                        ServePage(request, reply);
                      }});
  }
  auto server = HttpServer::Start({.listen = options_.listen,
                                   .max_body_bytes = code_->limits().archive_bytes + (1u << 20),
                                   .tls = options_.tls},
                                  std::move(routes));
  if (server.status().message().find("Address already in use") != std::string_view::npos) {
    return UnavailableError(
        fmt::format("another program, perhaps another master, listens on {}: end it, or choose "
                    "another port with --listen",
                    options_.listen));
  }
  ASSIGN_OR_RETURN(server_, std::move(server));
  if (options_.advertise == kFiles) {
    const std::string directory =
        std::filesystem::absolute(Path("tunnel")).lexically_normal().string();
    ASSIGN_OR_RETURN(tunnel_, TunnelExit::Open(directory, server_->port()));
    engine_->SetRemoteUrl("files:" + directory);
  } else {
    engine_->SetRemoteUrl(options_.advertise.empty() ? server_->url() : options_.advertise);
  }
  // Runs of this machine speak through a socket whose name does not change when the port does.
  const std::string socket = Path("trial.sock");
  if (socket.size() > kLongestSocketPath) {
    engine_->SetUrl(server_->url(),
                    options_.tls_ca.empty()
                        ? ""
                        : std::filesystem::absolute(options_.tls_ca).lexically_normal().string());
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(runs_server_,
                   HttpServer::Start({.listen = "unix:" + socket, .threads = 2}, RunRoutes()));
  engine_->SetUrl(runs_server_->url());
  return Status::Ok();
}

Result<std::int64_t> Master::Impl::LocalAdmin() {
  for (const User& user : accounts_->List()) {
    if (user.active && user.role == RoleName(Role::kAdmin)) return user.id;
  }
  return FailedPreconditionError("there is no active admin");
}

Status Master::Impl::WriteToken() {
  if (const auto present = ReadWhole(token_path()); present.ok()) {
    const std::string token = present->substr(0, present->find('\n'));
    const auto who = accounts_->Authenticate(token);
    if (who.ok() && who->role == Role::kAdmin) return Status::Ok();
  }
  ASSIGN_OR_RETURN(const std::int64_t user, LocalAdmin());
  ASSIGN_OR_RETURN(const auto made, accounts_->CreateToken(user, "the master's data directory", 0));
  return WriteWhole(token_path(), made.secret + "\n", 0600);
}

void Master::Impl::OnEvent(const Event& event) {
  if (event.kind == EventKind::kTrialCreated) {
    const Value* experiment = event.body.Find("config/experiment");
    if (experiment != nullptr && experiment->if_string() != nullptr) {
      experiments_->OnTrialCreated(event.trial, *experiment->if_string());
    }
  }
  feed_->OnEvent(event);
  switch (event.kind) {
    case EventKind::kReport:
      return experiments_->OnReport(event);
    case EventKind::kStatus:
    case EventKind::kCheckpointStarted:
    case EventKind::kCheckpointCompleted:
    case EventKind::kCheckpointAbandoned:
    case EventKind::kCheckpointDeleted:
    case EventKind::kCheckpointPinned:
    case EventKind::kRetentionChanged:
    case EventKind::kRepositoryChosen:
    case EventKind::kNote:
      return;
    case EventKind::kProgress:
      return experiments_->OnTrialChanged(event.trial, false);
    default:
      break;
  }
  if (event.kind == EventKind::kRunExited) {
    collector_->OnSettled(event.trial, event.run);
    followers_->OnChange(event.trial);
  }
  experiments_->OnTrialChanged(event.trial, true);
  webhooks_->Wake();
}

void Master::Impl::OnLaunch(const LaunchInfo& info) {
  if (!ready_) return;  // what ended before is asked for when the engine starts
  // First: the engine's event about the end of a run must find its log known, and its beginning.
  collector_->OnLaunch(info);
  const bool running = info.state == LaunchState::kRunning;
  if (running || (info.state == LaunchState::kEnded && info.started != 0)) NoteBegan(info);
  engine_->OnLaunch(info);
  if (info.state != LaunchState::kRunning) return;
  if (const auto key = engine_->RunOfLaunch(info.id)) {
    // QUEUED became STARTING, for people.
    experiments_->OnTrialChanged(key->trial, true);
    feed_->OnTrial(key->trial);
  }
}

void Master::Impl::NoteBegan(const LaunchInfo& info) {
  const auto key = engine_->RunOfLaunch(info.id);
  if (!key) return;
  const auto standing = engine_->StandingOf(key->trial);
  if (!standing.ok() || standing->core.run != key->run || !standing->core.live) return;
  {
    MutexLock hold(&mu_);
    std::uint64_t& noted = began_[key->trial];
    if (std::exchange(noted, key->run) == key->run) return;
  }
  const Status noted = engine_->Note(
      key->trial,
      Value::Object{{"what", kRunBegan},
                    {"run", key->run},
                    {"time", info.started != 0 ? info.started : options_.clock->WallNanos()}});
  if (!noted.ok()) LogWarning(fmt::format("run {}: {}", info.id, noted.ToString()));
}

std::string Master::Impl::RestOf(const std::string& trial) {
  const auto view = engine_->Summary(trial);
  if (!view.ok()) return "";
  const TrialCore& core = view->record.core;
  const bool rests = !core.live && (IsEnded(core.state) || core.state == TrialState::kPaused);
  return rests && collector_->Finished(trial) ? std::string(TrialStateName(core.state)) : "";
}

Value Master::Impl::ExperimentNow(const std::string& experiment) {
  const auto id = ExperimentId(experiment);
  if (!id.ok()) return {};
  const auto record = catalog_->experiments().Get(*id);
  if (!record.ok()) return {};
  return Value::Object{{"state", record->state}, {"progress", record->progress}};
}

void Master::Impl::ServePage(const ServerRequest& request, const HttpReply& reply) {
  if (known_->Find("GET", request.path).known_path) {
    return reply.Send(ErrorResponse(405, "method_not_allowed", "not with GET"));
  }
  if (request.path.starts_with("/api/") || request.path.starts_with("/trial/")) {
    return reply.Send(ErrorResponse(404, "not_found", "there is no such route"));
  }
  const bool taken = threads_->Post([this, path = request.path, reply] {
    const auto file = WebFile(options_.web_directory, path);
    reply.Send(file.ok() ? *file : ApiError(file.status()));
  });
  if (!taken) reply.Send(ApiError(UnavailableError("too much to do: try again")));
}

void Master::Impl::Tidy(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (const Status status = TidyOnce(); !status.ok()) LogWarning("tidy: " + status.ToString());
    MutexLock hold(&mu_);
    if (!stopping_) stopped_.WaitFor(&mu_, kTidyInterval);
    if (stopping_) return;
  }
}

Status Master::Impl::TidyOnce() {
  RETURN_IF_ERROR(accounts_->Tidy());
  const std::int64_t now = options_.clock->WallNanos();
  RETURN_IF_ERROR(catalog_->logs().Retain(options_.log_retention, now).status());
  RETURN_IF_ERROR(catalog_->webhooks().Forget(
      now - std::chrono::nanoseconds(std::chrono::hours(24 * 7)).count()));
  std::set<std::string> used;
  for (ExperimentQuery query{.limit = kMaxPage};; query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(const Page<Experiment> page, catalog_->experiments().List(query));
    for (const Experiment& one : page.items) used.insert(one.code_digest);
    if (page.items.size() < kMaxPage) break;
  }
  return code_->Sweep(used, kUnusedCode, options_.clock);
}

void Master::Impl::Stop() {
  {
    MutexLock hold(&mu_);
    if (stopping_) return;
    stopping_ = true;
    stopped_.NotifyAll();
  }
  // Nobody asks any more; then those who act; then what they act on.
  if (tidy_.joinable()) tidy_.join();
  if (server_) server_->Stop();
  if (runs_server_) runs_server_->Stop();
  if (threads_) threads_->Stop();
  if (downloads_) downloads_->Stop();
  if (new_bytes_) new_bytes_->Stop();
  if (engine_) engine_->Drain();
  if (experiments_) experiments_->Stop();
  if (collector_) collector_->Stop();
  if (webhooks_) webhooks_->Stop();
  if (followers_) followers_->Stop();
  if (feed_) feed_->Stop();
  if (launcher_) {
    launcher_->Close(Launcher::CloseMode::kLeave)
        .IgnoreError("what runs is found again, whatever it said");
  }
  engine_.reset();
}

Master::Master(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Master::~Master() = default;

Result<std::unique_ptr<Master>> Master::Start(Options options) {
  RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Master>(new Master(std::move(impl)));
}

const std::string& Master::url() const { return impl_->url(); }
Result<std::string> Master::LoginLink() { return impl_->LoginLink(); }
Status Master::CheckPage() const { return impl_->CheckPage(); }
std::string Master::token_path() const { return impl_->token_path(); }
Accounts* Master::accounts() { return impl_->accounts(); }
std::vector<Master::RouteInfo> Master::Routes() const { return impl_->Routes(); }
void Master::Stop() { impl_->Stop(); }

}  // namespace cairn::master
