#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "format/json.h"
#include "paramserver/dropping_proxy.h"

/// A job of real processes that a test starts, kills and starts again.
namespace cairn::ps {

inline std::string BinDir() {
  const char* bin = std::getenv("CAIRN_BIN_DIR");
  return bin != nullptr ? bin : "build/dev/bin";
}

/// A child process whose standard output is read line by line. Killed when the test dies.
class Process {
 public:
  Process(std::vector<std::string> argv, const std::map<std::string, std::string>& env,
          const std::string& log) {
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int err = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      dup2(pipe_fds[1], STDOUT_FILENO);
      dup2(err, STDERR_FILENO);
      signal(SIGXFSZ, SIG_IGN);  // a write that may not be is an error then
      for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
      std::vector<char*> words;
      for (std::string& word : argv) words.push_back(word.data());
      words.push_back(nullptr);
      execv(words[0], words.data());
      _exit(127);
    }
    close(pipe_fds[1]);
    out_ = pipe_fds[0];
    pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  }
  ~Process() {
    if (!reaped_) {
      Signal(SIGKILL);
      Reap();
    }
    close(out_);
    close(pidfd_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int out() const { return out_; }
  int pidfd() const { return pidfd_; }
  void Signal(int signal) const { kill(pid_, signal); }
  void LimitFiles(bool limited) const {
    rlimit limit{limited ? 1 : RLIM_INFINITY, RLIM_INFINITY};
    prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr);
  }
  int Reap() {
    if (!reaped_) {
      waitpid(pid_, &status_, 0);
      reaped_ = true;
    }
    return status_;
  }
  /// Whole lines that came; call when out() is readable.
  std::vector<std::string> Lines() {
    char buffer[4096];
    const ssize_t n = read(out_, buffer, sizeof buffer);
    if (n > 0) rest_.append(buffer, static_cast<std::size_t>(n));
    std::vector<std::string> lines;
    for (std::size_t end; (end = rest_.find('\n')) != rest_.npos; rest_.erase(0, end + 1)) {
      lines.push_back(rest_.substr(0, end));
    }
    closed_ = n == 0;
    return lines;
  }
  bool closed() const { return closed_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int pidfd_ = -1;
  int status_ = 0;
  bool reaped_ = false;
  bool closed_ = false;
  std::string rest_;
};

/// A process of this machine that somebody else started, as long as it is there: another one that
/// gets its number is never meant.
class FoundProcess {
 public:
  explicit FoundProcess(pid_t pid)
      : pid_(pid), pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  ~FoundProcess() {
    if (pidfd_ >= 0) close(pidfd_);
  }
  FoundProcess(const FoundProcess&) = delete;
  FoundProcess& operator=(const FoundProcess&) = delete;

  /// Empty: it is gone, or another user's.
  std::vector<std::string> Words() const { return Entries("cmdline"); }
  std::vector<std::string> Environment() const { return Entries("environ"); }
  void Signal(int signal) const { syscall(SYS_pidfd_send_signal, pidfd_, signal, nullptr, 0); }
  void LimitFiles(bool limited) const {
    rlimit limit{limited ? 1 : RLIM_INFINITY, RLIM_INFINITY};
    prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr);
  }

  static std::vector<std::unique_ptr<FoundProcess>> All() {
    std::vector<std::unique_ptr<FoundProcess>> all;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != name.npos) continue;
      all.push_back(std::make_unique<FoundProcess>(std::stoi(name)));
    }
    return all;
  }

 private:
  std::vector<std::string> Entries(const std::string& file) const {
    std::ifstream in("/proc/" + std::to_string(pid_) + "/" + file);
    std::vector<std::string> entries;
    for (std::string entry; std::getline(in, entry, '\0');) entries.push_back(entry);
    return entries;
  }

  const pid_t pid_;
  const int pidfd_;
};

/// As a signal: the process cannot make a file longer for 300 ms, as on a disk that is full.
inline constexpr int kDiskFull = 1000;

/// Something that happens to a process when trainer 0 begins a step.
struct Fault {
  std::int64_t step = 0;  // -1: when the job is started
  bool server = true;     // or a trainer
  int index = 0;
  bool supervisor = false;  // it, and neither
  int signal = SIGKILL;     // SIGSTOP: continued 300 ms later
  int delay_ms = 0;         // after that
  friend std::ostream& operator<<(std::ostream& out, const Fault& fault) {
    out << (fault.supervisor ? "supervisor" : fault.server ? "server " : "trainer ");
    if (!fault.supervisor) out << fault.index;
    return out << " signal " << fault.signal << " at step " << fault.step << " +" << fault.delay_ms
               << " ms";
  }
};

struct JobOptions {
  int servers = 2;
  int trainers = 2;
  std::int64_t steps = 30;  // faults come before the last ones: who has ended is not started again
  std::string mode = "sync";
  std::string recovery = "exact";
  std::string log_level = "written";
  std::string transport = "socket";  // of the trainers
  int full_steps = 10;
  int incremental_steps = 3;
  /// `cairn ps run` has the processes, and starts again what dies; the test starts that again. No
  /// slow disk, and no connections that are cut off.
  bool supervised = false;
  /// Servers that nobody uses any more are let finish a first checkpoint before they are ended.
  bool until_saved = false;
  /// Of that server (-1: of none) each operation on the disk takes up to so much longer.
  int slow_server = -1;
  int slow_ms = 0;
  /// Connections between trainers and servers are cut off after about so many bytes; 0: never.
  std::uint64_t drop_after = 0;
  std::vector<Fault> faults;  // by step
};

struct JobResult {
  bool ok = false;
  std::string problem;
  std::string learned;  // trainer 0's
  std::uint64_t rollbacks = 0;
  int kills = 0;
  int drops = 0;        // connections that were cut off
  int steps_begun = 0;  // by trainer 0, repeated ones too
};

/// Runs a job to its end, starting again whatever dies. Of a supervised one nothing is left then,
/// and no server or trainer of a supervisor that was killed meets one of the next.
class Cluster {
 public:
  Cluster(std::string directory, JobOptions options)
      : directory_(std::move(directory)), options_(std::move(options)) {
    std::filesystem::create_directories(directory_);
  }

  ~Cluster() {
    if (lines_ >= 0) close(lines_);
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  std::string repository() const { return directory_ + "/repository"; }

  JobResult Run(std::chrono::seconds patience) {
    const auto deadline = Now() + patience;
    for (int i = 0; i < options_.servers && options_.drop_after > 0; ++i) {
      proxies_.push_back(std::make_unique<DroppingProxy>(
          [this, i] { return PortOf(i); }, options_.drop_after, static_cast<std::uint64_t>(i)));
    }
    if (options_.supervised) {
      OpenLines();
      StartSupervisor();
    }
    for (int i = 0; i < options_.servers && !options_.supervised; ++i) StartServer(i);
    for (int i = 0; i < options_.trainers && !options_.supervised; ++i) StartTrainer(i);
    Begun(-1);
    while (!Finished()) {
      if (Now() > deadline) {
        result_.problem = "it did not end in time";
        return result_;
      }
      if (!Turn(deadline)) return result_;
    }
    while (options_.until_saved && !Saved()) {
      if (Now() > deadline) {
        result_.problem = "nothing was saved in time";
        return result_;
      }
      poll(nullptr, 0, 5);
    }
    for (std::string left; options_.supervised && !(left = Left(life_ + 1, false)).empty();) {
      if (Now() > deadline) {
        result_.problem = "was left when the job was over: " + left;
        return result_;
      }
      poll(nullptr, 0, 5);
    }
    std::ifstream in(Output() + "0");
    std::stringstream text;
    text << in.rdbuf();
    result_.learned = text.str();
    for (const auto& proxy : proxies_) result_.drops += proxy->drops();
    result_.ok = !result_.learned.empty();
    return result_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static Clock::time_point Now() { return Clock::now(); }

  struct Role {
    bool server = true;
    int index = 0;
    bool supervisor = false;
    auto operator<=>(const Role&) const = default;
  };
  static Role Supervisor() { return {.server = false, .index = 0, .supervisor = true}; }
  struct Due {
    Clock::time_point time;
    Role role;
    int signal = SIGKILL;
  };

  /// And the trainer's number.
  std::string Output() const { return directory_ + "/learned_"; }
  /// There when all faults have come.
  std::string Struck() const { return directory_ + "/struck"; }
  std::string NameOf(const Role& role) const {
    if (role.supervisor) return "supervisor";
    return (role.server ? "server_" : "trainer_") + std::to_string(role.index);
  }
  std::string Log(const Role& role) const { return directory_ + "/" + NameOf(role) + ".log"; }
  std::vector<std::string> JobFlags() const {
    return {"--dir",
            repository(),
            "--servers",
            std::to_string(options_.servers),
            "--trainers",
            std::to_string(options_.trainers),
            "--mode",
            options_.mode,
            "--recovery",
            options_.recovery,
            "--log-level",
            options_.log_level,
            "--full-secs",
            "0",
            "--full-steps",
            std::to_string(options_.full_steps),
            "--incremental-steps",
            std::to_string(options_.incremental_steps)};
  }
  /// However late this process comes to strike, the job is not over.
  std::vector<std::string> TrainerCommand() const {
    return {BinDir() + "/cluster_trainer", Output(), std::to_string(options_.steps),
            std::to_string(options_.steps - 4), Struck()};
  }
  /// Trainers tell their steps through a pipe: a supervisor passes their output on when it comes to
  /// it.
  void OpenLines() {
    const std::string name = directory_ + "/lines";
    if (mkfifo(name.c_str(), 0600) != 0) std::abort();
    lines_ = open(name.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  void StartSupervisor() {
    processes_.erase(Supervisor());
    ++life_;
    std::vector<std::string> command{BinDir() + "/cairn", "ps", "run"};
    const std::vector<std::string> flags = JobFlags();
    command.insert(command.end(), flags.begin(), flags.end());
    command.push_back("--");
    const std::vector<std::string> trainer = TrainerCommand();
    command.insert(command.end(), trainer.begin(), trainer.end());
    processes_.try_emplace(
        Supervisor(), command,
        std::map<std::string, std::string>{{"CAIRN_LOG", "info"},
                                           {"CAIRN_PS_TRANSPORT", options_.transport},
                                           {"CAIRN_TEST_LINES", directory_ + "/lines"},
                                           {"CAIRN_TEST_JOB", directory_},
                                           {"CAIRN_TEST_LIFE", std::to_string(life_)}},
        Log(Supervisor()));
  }
  static bool Has(const std::vector<std::string>& entries, const std::string& entry) {
    return std::find(entries.begin(), entries.end(), entry) != entries.end();
  }
  /// Who has the role; the newest life's.
  bool Is(const FoundProcess& process, const Role& role) const {
    const std::vector<std::string> words = process.Words();
    if (words.size() < 2) return false;
    if (role.server ? words[1] != "pserver" : words[1] != Output()) return false;
    const std::vector<std::string> environment = process.Environment();
    if (!Has(environment, "CAIRN_TEST_JOB=" + directory_)) return false;
    if (!Has(environment, "CAIRN_TEST_LIFE=" + std::to_string(life_))) return false;
    const std::string index = std::to_string(role.index);
    if (!role.server) return Has(environment, "CAIRN_TRAINER_ID=" + index);
    const auto flag = std::find(words.begin(), words.end(), "--index");
    return flag != words.end() && flag + 1 != words.end() && flag[1] == index;
  }
  /// A process of a life before that one; "": none is there. `working`: a server or trainer, and
  /// nobody who is just done with keeping one.
  std::string Left(int life, bool working) const {
    for (const auto& process : FoundProcess::All()) {
      const std::vector<std::string> environment = process->Environment();
      if (!Has(environment, "CAIRN_TEST_JOB=" + directory_)) continue;
      const std::vector<std::string> words = process->Words();
      if (words.size() < 2 || (working && words[1] != "pserver" && words[1] != Output())) continue;
      for (int each = 1; each < life; ++each) {
        if (!Has(environment, "CAIRN_TEST_LIFE=" + std::to_string(each))) continue;
        std::string text = "life " + std::to_string(each) + ":";
        for (const std::string& word : words) text += " " + word;
        return text;
      }
    }
    return "";
  }
  void StartServer(int i) {
    const Role role{true, i};
    processes_.erase(role);
    std::map<std::string, std::string> env{{"CAIRN_LOG", "info"}};
    if (i == options_.slow_server) {
      env["LD_PRELOAD"] = BinDir() + "/libslow_disk.so";
      env["CAIRN_TEST_SLOW_DISK_MS"] = std::to_string(options_.slow_ms);
    }
    std::vector<std::string> command{BinDir() + "/cairn", "pserver", "--index", std::to_string(i)};
    const std::vector<std::string> flags = JobFlags();
    command.insert(command.end(), flags.begin(), flags.end());
    processes_.try_emplace(role, command, env, Log(role));
  }
  void StartTrainer(int i) {
    const Role role{false, i};
    processes_.erase(role);
    // The servers take any port: they are found through the repository, also by the proxies, whose
    // ports stay.
    std::string addresses;
    for (int s = 0; s < options_.servers; ++s) {
      const int port = proxies_.empty() ? 1 : proxies_[static_cast<std::size_t>(s)]->port();
      addresses += "127.0.0.1:" + std::to_string(port) + ",";
    }
    std::map<std::string, std::string> env{
        {"CAIRN_PS_SERVERS", addresses},
        {"CAIRN_TRAINER_ID", std::to_string(i)},
        {"CAIRN_NUM_TRAINERS", std::to_string(options_.trainers)},
        {"CAIRN_PS_TRANSPORT", options_.transport}};
    if (proxies_.empty()) env["CAIRN_CHECKPOINT_DIR"] = repository();
    processes_.try_emplace(role, TrainerCommand(), env, Log(role));
  }
  /// Where the server registered; 0: nowhere yet.
  int PortOf(int server) const {
    std::ifstream in(repository() + "/servers/ps_" + std::to_string(server) + ".json");
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto record = DecodeJson(text);
    const Value* address = record.ok() ? record->Find("address") : nullptr;
    if (address == nullptr || address->if_string() == nullptr) return 0;
    const std::string& where = *address->if_string();
    return std::atoi(where.substr(where.rfind(':') + 1).c_str());
  }
  bool Saved() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(repository(), error)) {
      if (std::filesystem::exists(entry.path() / "manifest.json", error)) return true;
    }
    return false;
  }
  bool Finished() const {
    for (const auto& [role, process] : processes_) {
      if (!role.server) return false;
    }
    return true;
  }
  /// Takes the lines that trainers told through the pipe. False: one of them should not have been.
  bool TakeLines() {
    char buffer[4096];
    for (ssize_t n; (n = read(lines_, buffer, sizeof buffer)) > 0;) {
      told_.append(buffer, static_cast<std::size_t>(n));
    }
    for (std::size_t end; (end = told_.find('\n')) != told_.npos; told_.erase(0, end + 1)) {
      std::istringstream line(told_.substr(0, end));
      int life = 0;
      Role role{.server = false};
      std::string word;
      line >> life >> role.index >> std::ws;
      std::getline(line, word);
      // Whoever came before this life must be gone by now.
      if (word.starts_with("begin ") && life == life_) {
        if (const std::string left = Left(life_, true); !left.empty()) {
          result_.problem = "still runs beside life " + std::to_string(life_) + ": " + left;
          return false;
        }
      }
      Saw(role, word);
    }
    return true;
  }
  void Saw(const Role& role, const std::string& line) {
    if (line.starts_with("rollbacks ")) result_.rollbacks += std::stoull(line.substr(10));
    if (line == "back" && !options_.supervised) CallBack();
    if (role != Role{false, 0} || !line.starts_with("step ")) return;
    ++result_.steps_begun;
    Begun(std::stoll(line.substr(5)));
  }
  /// A trainer could not leave because the job went back: those that have left are wanted again, as
  /// `cairn ps run` starts them again.
  void CallBack() {
    for (int i = 0; i < options_.trainers; ++i) {
      if (!processes_.contains(Role{false, i})) StartTrainer(i);
    }
  }
  void Begun(std::int64_t step) {
    while (!options_.faults.empty() && options_.faults.front().step <= step) {
      const Fault fault = options_.faults.front();
      options_.faults.erase(options_.faults.begin());
      due_.push_back({Now() + std::chrono::milliseconds(fault.delay_ms),
                      fault.supervisor ? Supervisor() : Role{fault.server, fault.index},
                      fault.signal});
    }
  }
  /// False: a process failed by itself.
  bool Turn(Clock::time_point deadline) {
    std::vector<pollfd> fds;
    std::vector<Role> roles;
    for (const auto& [role, process] : processes_) {
      fds.push_back({process.pidfd(), POLLIN, 0});
      fds.push_back({process.closed() ? -1 : process.out(), POLLIN, 0});
      roles.push_back(role);
    }
    fds.push_back({lines_, POLLIN, 0});
    auto until = deadline;
    for (const Due& due : due_) until = std::min(until, due.time);
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(until - Now()).count();
    poll(fds.data(), fds.size(), static_cast<int>(std::max<std::int64_t>(0, wait)));
    if (options_.supervised && !TakeLines()) return false;
    for (std::size_t i = 0; i < roles.size(); ++i) {
      auto it = processes_.find(roles[i]);
      if (fds[2 * i + 1].revents != 0) {
        for (const std::string& line : it->second.Lines()) Saw(roles[i], line);
      }
      if (fds[2 * i].revents != 0 && !Ended(roles[i], &it->second)) return false;
    }
    std::vector<Due> now;
    for (std::size_t i = 0; i < due_.size();) {
      if (due_[i].time > Now()) {
        ++i;
        continue;
      }
      now.push_back(due_[i]);
      due_.erase(due_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const Due& due : now) Strike(due);
    if (!struck_ && options_.faults.empty() && due_.empty()) {
      std::ofstream(Struck()).close();
      struck_ = true;
    }
    return true;
  }
  void Strike(const Due& due) {
    if (const auto it = processes_.find(due.role); it != processes_.end()) {
      Strike(due, it->second);
      return;
    }
    if (!options_.supervised) return;  // it is done
    for (const auto& process : FoundProcess::All()) {
      if (Is(*process, due.role)) return Strike(due, *process);
    }
    // It is being started: it has what was in store for it behind it.
  }
  template <typename Victim>
  void Strike(const Due& due, const Victim& victim) {
    if (due.signal == kDiskFull || due.signal == kDiskFull + 1) {
      victim.LimitFiles(due.signal == kDiskFull);
      full_.erase(due.role);
      if (due.signal == kDiskFull) {
        full_.insert(due.role);
        due_.push_back({Now() + std::chrono::milliseconds(300), due.role, kDiskFull + 1});
      }
      return;
    }
    victim.Signal(due.signal);
    if (due.signal == SIGKILL) ++result_.kills;
    if (due.signal == SIGSTOP) {
      due_.push_back({Now() + std::chrono::milliseconds(300), due.role, SIGCONT});
    }
  }
  bool Ended(const Role& role, Process* process) {
    while (!process->closed()) {
      for (const std::string& line : process->Lines()) Saw(role, line);
    }
    const int status = process->Reap();
    if (role.supervisor && !TakeLines()) return false;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !role.server) {
      processes_.erase(role);
      return true;
    }
    // One that cannot even register ends, and is started again, as by `cairn ps run`.
    const bool no_room = role.server && full_.contains(role) && WIFEXITED(status);
    if (!no_room && (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)) {
      result_.problem =
          NameOf(role) + " ended with status " + std::to_string(status) + "; see " + Log(role);
      return false;
    }
    if (role.supervisor) {
      StartSupervisor();
    } else {
      role.server ? StartServer(role.index) : StartTrainer(role.index);
    }
    return true;
  }

  const std::string directory_;
  JobOptions options_;
  std::vector<std::unique_ptr<DroppingProxy>> proxies_;  // by server
  std::map<Role, Process> processes_;                    // of a supervised job: the supervisor
  int life_ = 0;                                         // of the supervisor
  int lines_ = -1;                                       // the pipe of supervised trainers …
  std::string told_;                                     // … and the beginning of a line in it
  std::vector<Due> due_;
  std::set<Role> full_;  // whose disks are full
  bool struck_ = false;  // all faults have come
  JobResult result_;
};

}  // namespace cairn::ps
