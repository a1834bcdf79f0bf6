// cairn-shim DIRECTORY OWNER: keeps one launch; started by the local launcher, once for each. OWNER
// is a descriptor (see KeeperOptions::owner) or -1; or `remote:KEY`, in the job of a cluster's
// scheduler (see KeeperOptions::remote); or `node:KEY:INDEX`, on another node of such a job (see
// KeeperOptions::node). What it has to say goes to DIRECTORY/shim.err.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
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
  constexpr std::string_view kNode = "node:";
  std::string_view who(argv[2]);
  int* number = &options.owner;
  if (who.starts_with(kRemote)) {
    options.remote = true;
    options.key = who.substr(kRemote.size());
  } else if (who.starts_with(kNode)) {
    options.remote = options.linked = true;
    who.remove_prefix(kNode.size());
    options.key = who.substr(0, who.find(':'));
    who.remove_prefix(std::min(options.key.size() + 1, who.size()));
    number = &options.node;
  }
  const bool numbered = !options.remote || number == &options.node;
  const char* end = who.data() + who.size();
  const auto [stopped, error] = std::from_chars(who.data(), end, *number);
  if (numbered && (error != std::errc() || stopped != end)) {
    std::fprintf(stderr, "cairn-shim: no descriptor and no node: %s\n", argv[2]);
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
