#pragma once

#include <string>

#include <cairn/status.h>

namespace cairn::master {

/// Removes a repository whole, if it is that job's ("": whoever's), and the directory above it when
/// nothing is left there. OK when there is none, or it is another's: that stays. After an error, or
/// killed in the middle, the same call goes on.
Status RemoveRepository(const std::string& repository, const std::string& job);

}  // namespace cairn::master
