#pragma once

#include <map>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/variables.h"

namespace cairn {

/// The settings of one profile of AWS's files: those of ~/.aws/credentials over those of
/// ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name others).
struct AwsProfile {
  std::string name;
  /// Those of a setting as "s3.addressing_style"; the endpoint of the section that `services` names
  /// as "services.s3.endpoint_url".
  std::map<std::string, std::string> settings;
  std::string files;   // that were looked at, for messages
  bool found = false;  // a section of that name is in one of them

  std::string Get(const std::string& setting) const;
};

/// The profile that AWS_PROFILE names, else "default". Files that are not there are empty ones; one
/// that cannot be read or understood is InvalidArgument, and names the line.
Result<AwsProfile> ReadAwsProfile(const Variables& variables);

/// The sections of such a file: name → settings, with "above.name" for indented ones.
Result<std::map<std::string, std::map<std::string, std::string>>> ParseAwsFile(
    std::string_view text);

}  // namespace cairn
