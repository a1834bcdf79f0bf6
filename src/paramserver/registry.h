#pragma once

#include <memory>
#include <string>

#include <cairn/status.h>

#include "storage/store.h"

/// Where the servers of a job are: each writes its address into the repository, and whoever looks
/// for it reads it there. An address may be out of date; whoever answers says which server it is.
namespace cairn::ps {

struct ServerAddress {
  std::string address;
  std::string process;  // differs for each start
};

Status RegisterServer(Store* store, int server, const ServerAddress& address);
/// NotFound when that server never registered.
Result<ServerAddress> FindServer(Store* store, int server);

}  // namespace cairn::ps
