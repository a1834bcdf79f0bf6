#include "storage/s3/aws_profile.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

using Sections = std::map<std::string, std::map<std::string, std::string>>;

constexpr std::size_t kMaxFileBytes = 1u << 20;

std::string_view Trim(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

Result<Sections> ReadSections(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    if (errno == ENOENT || errno == ENOTDIR) return Sections();
    return InvalidArgumentError("\"" + path + "\" cannot be read: " + std::strerror(errno));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMaxFileBytes) {
    return InvalidArgumentError("\"" + path + "\" is larger than a file of AWS profiles can be");
  }
  auto sections = ParseAwsFile(text);
  if (!sections.ok()) return sections.status().WithContext("\"" + path + "\"");
  return sections;
}

}  // namespace

std::string AwsProfile::Get(const std::string& setting) const {
  const auto found_setting = settings.find(setting);
  return found_setting == settings.end() ? "" : found_setting->second;
}

Result<Sections> ParseAwsFile(std::string_view text) {
  Sections sections;
  std::map<std::string, std::string>* section = nullptr;
  std::string above;  // the setting whose own follow, indented
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view raw = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::string_view line = Trim(raw);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    const Status bad = InvalidArgumentError("line " + std::to_string(number) + " is neither " +
                                            "\"[section]\" nor \"name = value\"");
    if (line.front() == '[') {
      const std::size_t close = line.find(']');
      if (close == line.npos) return bad;
      section = &sections[std::string(Trim(line.substr(1, close - 1)))];
      above.clear();
      continue;
    }
    const std::size_t equals = line.find('=');
    if (raw.front() == ' ' || raw.front() == '\t') {
      // Settings of a setting ("s3 =", then indented lines); what else is indented goes on with the
      // value before it, which is of no use here.
      if (equals == line.npos || equals == 0 || section == nullptr || above.empty()) continue;
      (*section)[above + "." + std::string(Trim(line.substr(0, equals)))] =
          Trim(line.substr(equals + 1));
      continue;
    }
    if (equals == line.npos || equals == 0 || section == nullptr) return bad;
    const std::string name(Trim(line.substr(0, equals)));
    const std::string_view value = Trim(line.substr(equals + 1));
    (*section)[name] = value;
    above = value.empty() ? name : "";
  }
  return sections;
}

Result<AwsProfile> ReadAwsProfile(const Variables& variables) {
  AwsProfile profile;
  profile.name = variables("AWS_PROFILE").value_or("default");
  const std::string home = variables("HOME").value_or("");
  const std::string config = variables("AWS_CONFIG_FILE").value_or(home + "/.aws/config");
  const std::string keys =
      variables("AWS_SHARED_CREDENTIALS_FILE").value_or(home + "/.aws/credentials");
  profile.files = keys + " and " + config;
  ASSIGN_OR_RETURN(const Sections from_config, ReadSections(config));
  ASSIGN_OR_RETURN(const Sections from_keys, ReadSections(keys));
  const auto add = [&](const Sections& sections, const std::string& name) {
    const auto found = sections.find(name);
    if (found == sections.end()) return;
    profile.found = true;
    for (const auto& [setting, value] : found->second) profile.settings[setting] = value;
  };
  // In the config file all but the default are called "profile <name>".
  if (profile.name == "default") add(from_config, "default");
  add(from_config, "profile " + profile.name);
  add(from_keys, profile.name);
  // Endpoints of single services may stand in a section of their own.
  const std::string services = profile.Get("services");
  if (const auto found = from_config.find("services " + services);
      !services.empty() && found != from_config.end()) {
    const auto endpoint = found->second.find("s3.endpoint_url");
    if (endpoint != found->second.end())
      profile.settings["services.s3.endpoint_url"] = endpoint->second;
  }
  if (!profile.found && variables("AWS_PROFILE")) {
    return InvalidArgumentError("AWS_PROFILE is \"" + profile.name +
                                "\", but there is no such profile in " + profile.files);
  }
  return profile;
}

}  // namespace cairn
