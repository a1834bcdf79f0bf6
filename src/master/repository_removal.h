#pragma once

#include <string>

#include <cairn/status.h>

namespace cairn::master {

/// Removes all repositories of the trials of an experiment, <storage>/<experiment>, whole. OK when
/// there are none. Nobody writes to them any more.
Status RemoveRepositories(const std::string& storage, const std::string& experiment);

}  // namespace cairn::master
