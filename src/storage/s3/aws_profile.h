#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn {

/// Looks a variable of the process up; nullopt when it is not set. Passed in, so that tests need
/// not change their own.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
/// Those of this process. Empty ones count as not set.
Variables ProcessVariables();

/// The settings of one profile of AWS's files: those of ~/.aws/credentials over those of
/// ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name others).
struct AwsProfile {
  std::string name;
  std::map<std::string, std::string> settings;
  std::string files;   // that were looked at, for messages
  bool found = false;  // a section of that name is in one of them

  std::string Get(const std::string& setting) const;
};

/// The profile that AWS_PROFILE names, else "default". Files that are not there are empty ones; one
/// that cannot be read or understood is InvalidArgument, and names the line.
Result<AwsProfile> ReadAwsProfile(const Variables& variables);

/// The sections of such a file: name → settings.
Result<std::map<std::string, std::map<std::string, std::string>>> ParseAwsFile(
    std::string_view text);

}  // namespace cairn
