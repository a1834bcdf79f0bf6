#pragma once

#include <string>

#include <cairn/status.h>

namespace cairn {

/// An address of this machine at which processes of several machines can meet.
struct Rendezvous {
  std::string host;  // this machine's name
  int port = 0;
};

/// This machine's name.
Result<std::string> HostName();

/// With a port that was free a moment ago, on all of this machine's addresses.
Result<Rendezvous> FreeRendezvous();

}  // namespace cairn
