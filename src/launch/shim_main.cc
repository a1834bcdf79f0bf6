// cairn-shim DIRECTORY OWNER: keeps one launch; started by the local launcher, once for each. OWNER
// is a descriptor (see KeeperOptions::owner) or -1; or `remote:KEY`, in the job of a cluster's
// scheduler (see KeeperOptions::remote). What it has to say goes to DIRECTORY/shim.err.

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "launch/keeper.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: cairn-shim DIRECTORY OWNER (started by cairn itself)\n");
    return 2;
  }
  cairn::KeeperOptions options;
  options.directory = argv[1];
  constexpr std::string_view kRemote = "remote:";
  options.remote = std::string_view(argv[2]).starts_with(kRemote);
  if (options.remote) options.key = argv[2] + kRemote.size();
  const char* end = argv[2] + std::strlen(argv[2]);
  const auto [stopped, error] = std::from_chars(argv[2], end, options.owner);
  if (!options.remote && (error != std::errc() || stopped != end)) {
    std::fprintf(stderr, "cairn-shim: no descriptor: %s\n", argv[2]);
    return 2;
  }
  if (options.owner >= 0) fcntl(options.owner, F_SETFD, FD_CLOEXEC);
  const std::string path = options.directory + "/shim.err";
  const int errors = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (errors >= 0) dup2(errors, 2);
  const cairn::Status status = cairn::KeepLaunch(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cairn-shim: %s\n", status.ToString().c_str());
  return 3;
}
