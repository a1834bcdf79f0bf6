#include "cli/doctor.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "cli/output.h"
#include "cli/raw_files.h"
#include "storage/local/object_path.h"
#include "storage/local/posix_fs.h"
#include "storage/local/uring_queue.h"

namespace cairn::cli {
namespace {

std::string FileSystemName(const std::string& path) {
  struct statfs info{};
  if (statfs(path.c_str(), &info) != 0) return "unknown";
  static const std::map<std::uint64_t, std::string> kNames = {
      {0xef53, "ext4"},        {0x58465342, "XFS"},  {0x9123683e, "Btrfs"}, {0x01021994, "tmpfs"},
      {0x794c7630, "overlay"}, {0x6969, "NFS"},      {0x2fc12fc1, "ZFS"},   {0xff534d42, "CIFS"},
      {0xfe534d42, "SMB2"},    {0x65735546, "FUSE"}, {0xf2f52010, "F2FS"},  {0x0bd00bd0, "Lustre"},
      {0x00c36400, "Ceph"},    {0x4d44, "FAT"},      {0x47504653, "GPFS"}};
  const auto magic = static_cast<std::uint64_t>(info.f_type) & 0xffffffff;
  const auto it = kNames.find(magic);
  return it != kNames.end() ? it->second : fmt::format("type {:#x}", magic);
}

struct Rates {
  std::map<std::string, std::vector<double>> measured;
};

/// All ways in turn, several rounds, so that a disk that slows down favours none.
Status Measure(const DoctorOptions& options, const ScratchDirectory& trial, bool direct,
               std::uint64_t bytes, Console* console, Rates* rates) {
  RawFiles raw(console->clock());
  ProgressBar bar("measure", console->clock(), console->progress_enabled());
  const std::uint64_t steps = static_cast<std::uint64_t>(options.rounds) * 5;
  std::uint64_t step = 0;
  const auto note = [&](const std::string& what, Result<double> rate) -> Status {
    RETURN_IF_ERROR(rate.status());
    rates->measured[what].push_back(*rate);
    bar.Update(++step * bytes, steps * bytes);
    return Status::Ok();
  };
  for (int round = 0; round < options.rounds; ++round) {
    const std::string a = trial / "direct";
    const std::string b = trial / "buffered";
    if (direct) {
      RETURN_IF_ERROR(note("write_direct", raw.Write(a, bytes, true, true)));
      RETURN_IF_ERROR(note("overwrite_direct", raw.Write(a, bytes, true, false)));
    }
    RETURN_IF_ERROR(note("write_buffered", raw.Write(b, bytes, false, true)));
    if (!direct) {
      RETURN_IF_ERROR(note("overwrite_buffered", raw.Write(b, bytes, false, false)));
    }
    RETURN_IF_ERROR(note("read_buffered", raw.Read(b, bytes, false)));
    if (direct) RETURN_IF_ERROR(note("read_direct", raw.Read(a, bytes, true)));
    for (const std::string& path : {a, b}) {
      const Status gone = PosixFs()->Unlink(path);
      if (!gone.ok() && !gone.Is(Code::kNotFound)) return gone;
    }
  }
  return Status::Ok();
}

struct Finding {
  std::string key;
  bool works = false;
  std::string text;  // what it means
};

/// What the file system lets us do, found out by trying.
Result<std::vector<Finding>> TryAbilities(const ScratchDirectory& trial) {
  Fs* fs = PosixFs();
  const std::string file = trial / "file";
  const std::string bytes(RawFiles::kAlign, 'x');
  {
    ASSIGN_OR_RETURN(const auto made, fs->Open(file, {.write = true, .create = true}));
    RETURN_IF_ERROR(made->WriteAt(0, std::as_bytes(std::span(bytes))));
    RETURN_IF_ERROR(made->Sync("doctor"));
  }
  std::vector<Finding> findings;
  const auto add = [&](std::string key, bool works, std::string yes, std::string no) {
    findings.push_back({std::move(key), works, works ? std::move(yes) : std::move(no)});
  };
  add("o_direct", fs->Open(file, {.write = true, .direct = true}).ok(),
      "large files bypass the page cache where that is faster",
      "files are written through the page cache");
  add("hard_links", fs->Link(file, trial / "link").ok(),
      "unchanged files are shared between checkpoints",
      "REQUIRED for a repository: use another file system");
  add("locks", fs->TryLock(trial / "lock").ok(), "a second writer is refused at once",
      "a second writer is found out at its first commit only");
  fs->Unlink(trial / "link").IgnoreError("it may not be there");
  add("leases", fs->IsUnused(file), "files of removed checkpoints are written over, not made anew",
      "files of removed checkpoints are not recycled");
  return findings;
}

std::string MachineName() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return fmt::format("{} {} ({})", name.sysname, name.release, name.machine);
}

std::uint64_t MemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0
             ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
             : 0;
}

std::string Advice(const std::map<std::string, double>& rates) {
  const auto rate = [&](const std::string& key) {
    const auto it = rates.find(key);
    return it == rates.end() ? 0.0 : it->second;
  };
  const double direct = rate("write_direct");
  const double buffered = rate("write_buffered");
  std::string text;
  if (direct > 0) {
    text += fmt::format("O_DIRECT writes are {:.2f} x buffered ones here", direct / buffered);
    text += direct * 1.1 >= buffered ? "; the engine, which measures too, will prefer them.\n"
                                     : "; the engine, which measures too, will write buffered.\n";
    if (rate("overwrite_direct") > 1.1 * direct) {
      text += fmt::format("Overwriting is {:.2f} x as fast as new files: recycling pays off.\n",
                          rate("overwrite_direct") / direct);
    }
  }
  const double best = std::max(direct, buffered);
  if (best > 0) {
    text += fmt::format("A checkpoint of 10 GiB is durable in about {:.0f} s.\n",
                        10.0 * (1u << 30) / best);
  }
  return text;
}

/// Writes, finds and deletes a tiny object; the time of a small request. An error says what the
/// bucket or the keys lack.
Result<double> TryBucket(const Environment& env) {
  const std::string name = "doctor-" + env.ids->NewUuid();
  RETURN_IF_ERROR(env.store->List("").status());
  RETURN_IF_ERROR(env.store->Create(name, "1"));
  const auto begin = env.clock->Now();
  const Status again = env.store->Create(name, "2");
  const double seconds = std::chrono::duration<double>(env.clock->Now() - begin).count();
  RETURN_IF_ERROR(env.store->Delete(name));
  if (!again.Is(Code::kAlreadyExists)) {
    return FailedPreconditionError("\"" + env.store->Describe() +
                                   "\": an object was created twice; do not write here");
  }
  return seconds;
}

}  // namespace

Result<Output> Doctor(const DoctorOptions& options, Console* console) {
  Output out;
  const bool uring = UringWorks();
  const unsigned cores = std::thread::hardware_concurrency();
  const auto line = [&](std::string_view name, std::string_view value, std::string_view meaning) {
    out.text += fmt::format("{:<14} {:<10} {}", name, value, meaning);
    out.text.erase(out.text.find_last_not_of(' ') + 1);
    out.text += "\n";
  };
  out.text += "Machine\n";
  line("system", MachineName(), "");
  line("cores", std::to_string(cores), "");
  line("memory", HumanBytes(MemoryBytes()), "");
  line("io_uring", uring ? "yes" : "no",
       uring ? "several reads and writes in flight from one thread"
             : "threads do the same; a little more CPU");
  Value::Object machine = {{"system", MachineName()},
                           {"cores", static_cast<std::uint64_t>(cores)},
                           {"memory_bytes", MemoryBytes()},
                           {"io_uring", uring}};
  if (options.directory.empty()) {
    out.text += "\nName a directory to try it and to measure its speed: cairn doctor DIR\n";
    out.json = Value::Object{{"machine", std::move(machine)}, {"directory", Value()}};
    return out;
  }

  ASSIGN_OR_RETURN(const Environment env, ExistingDirectory(options.directory));
  if (IsRemote(options.directory)) {
    ASSIGN_OR_RETURN(const double seconds, TryBucket(env));
    out.text += "\nBucket " + Printable(options.directory) + "\n";
    line("create-only puts", "yes", "two writers cannot destroy each other's checkpoints");
    line("a small request", fmt::format("{:.1f} ms", seconds * 1e3), "there and back");
    out.json = Value::Object{{"machine", std::move(machine)},
                             {"bucket", Value::Object{{"url", options.directory},
                                                      {"create_only", true},
                                                      {"round_trip_seconds", seconds}}}};
    return out;
  }
  ASSIGN_OR_RETURN(const std::string path, LocalPath(options.directory));
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const std::uint64_t free, PosixFs()->FreeBytes(path));
  ScratchDirectory trial;
  RETURN_IF_ERROR(trial.Make(path, "doctor"));
  ASSIGN_OR_RETURN(const std::vector<Finding> findings, TryAbilities(trial));
  const std::string file_system = FileSystemName(path);
  const bool network = PosixFs()->IsNetwork(path);
  out.text += "\nDirectory " + Printable(path) + "\n";
  line("file system", file_system, network ? "on the network" : "");
  line("free", HumanBytes(free), "");
  Value::Object directory = {
      {"path", path}, {"file_system", file_system}, {"network", network}, {"free_bytes", free}};
  bool direct = false;
  for (const Finding& finding : findings) {
    static const std::map<std::string, std::string> kTitles = {{"o_direct", "O_DIRECT"},
                                                               {"hard_links", "hard links"},
                                                               {"locks", "locks"},
                                                               {"leases", "leases"}};
    line(kTitles.at(finding.key), finding.works ? "yes" : "no", finding.text);
    directory[finding.key] = finding.works;
    if (finding.key == "o_direct") direct = finding.works;
    if (finding.key == "hard_links" && !finding.works) out.exit_code = 1;
  }

  // Two files at once, and never the disk's last bytes.
  std::uint64_t bytes = std::min(options.bytes, free / 8);
  bytes -= bytes % RawFiles::kPart;
  Value::Object rates_json;
  if (bytes == 0) {
    out.text += "\nToo little space to measure the speed.\n";
  } else {
    Rates rates;
    RETURN_IF_ERROR(Measure(options, trial, direct, bytes, console, &rates));
    static const std::vector<std::pair<std::string, std::string>> kTitles = {
        {"write_direct", "new file, O_DIRECT"},
        {"write_buffered", "new file, buffered + fsync"},
        {"overwrite_direct", "overwriting, O_DIRECT"},
        {"overwrite_buffered", "overwriting, buffered"},
        {"read_direct", "read, O_DIRECT"},
        {"read_buffered", "read, buffered, not cached"}};
    out.text += fmt::format("\nSpeed, {} per file, median of {} rounds (slowest to fastest)\n",
                            HumanBytes(bytes), options.rounds);
    std::map<std::string, double> medians;
    for (const auto& [key, title] : kTitles) {
      const auto it = rates.measured.find(key);
      if (it == rates.measured.end()) continue;
      const auto [low, high] = std::minmax_element(it->second.begin(), it->second.end());
      medians[key] = Median(it->second);
      out.text += fmt::format("{:<27} {:>12}   ({} to {})\n", title, HumanRate(medians[key]),
                              HumanRate(*low), HumanRate(*high));
      rates_json[key] =
          Value::Object{{"median", medians[key]}, {"slowest", *low}, {"fastest", *high}};
    }
    out.text += "\n" + Advice(medians);
  }
  directory["measured_bytes"] = bytes;
  directory["bytes_per_second"] = std::move(rates_json);
  out.json = Value::Object{{"machine", std::move(machine)}, {"directory", std::move(directory)}};
  return out;
}

}  // namespace cairn::cli
