#include "master/web_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/status_macros.h"
#include "format/json.h"
#include "master/files.h"
#include "storage/store.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

std::string_view TypeOf(std::string_view path) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {".html", "text/html; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".svg", "image/svg+xml"},
      {".png", "image/png"},
      {".ico", "image/x-icon"},
      {".json", "application/json"},
      {".webmanifest", "application/manifest+json"},
      {".woff2", "font/woff2"},
      {".txt", "text/plain; charset=utf-8"}};
  for (const auto& [end, type] : kTypes) {
    if (path.ends_with(end)) return type;
  }
  return "application/octet-stream";
}

}  // namespace

std::vector<HttpHeader> PageHeaders() {
  return {{"Content-Security-Policy",
           "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
           "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
           "form-action 'self'; frame-ancestors 'none'"},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Opener-Policy", "same-origin"}};
}

Status CheckPage(const std::string& directory) {
  std::error_code error;
  if (!directory.empty() && fs::is_regular_file(fs::path(directory) / "index.html", error)) {
    return Status::Ok();
  }
  return NotFoundError(fmt::format(
      "this master has no web page{}. Run scripts/web in the checkout, which builds it (for an "
      "installed cairn pip install . after that), and start the master again. Commands and REST "
      "work without it.",
      directory.empty() ? "" : fmt::format(" (no index.html in {})", directory)));
}

Result<ServerResponse> WebFile(const std::string& directory, std::string_view path) {
  while (path.starts_with('/')) path.remove_prefix(1);
  std::string name(path.empty() ? "index.html" : path);
  if (path.empty() && !CheckPage(directory).ok()) {
    // Who opens the master's address in a browser is told what to do; strangers may ask too, so
    // not where the directory is.
    return ServerResponse{.body = std::string(CheckPage("").message()) + "\n",
                          .content_type = "text/plain; charset=utf-8",
                          .headers = PageHeaders()};
  }
  const auto not_there = [&] {
    return NotFoundError(fmt::format("there is nothing at /{}", path));
  };
  if (directory.empty() || !ValidateObjectName(name).ok()) return not_there();
  std::error_code error;
  // Links inside the directory lead wherever they like; what they lead to must be in it.
  const fs::path root = fs::canonical(directory, error);
  if (error) return not_there();
  fs::path file = fs::weakly_canonical(root / name, error);
  const auto inside = [&](const fs::path& one) {
    return one.string().starts_with(root.string() + "/");
  };
  if (error || !inside(file) || !fs::is_regular_file(file, error)) {
    name = "index.html";
    file = fs::weakly_canonical(root / name, error);
    if (error || !inside(file)) return not_there();
  }
  auto bytes = ReadWhole(file.string());
  if (bytes.status().Is(Code::kNotFound)) return not_there();
  RETURN_IF_ERROR(bytes.status());
  ServerResponse response{.body = *std::move(bytes),
                          .content_type = std::string(TypeOf(name)),
                          .headers = PageHeaders()};
  // Names of built assets change with what is in them.
  response.headers.push_back({"Cache-Control", name.starts_with("assets/")
                                                   ? "public, max-age=31536000, immutable"
                                                   : "no-cache"});
  return response;
}

}  // namespace cairn::master
