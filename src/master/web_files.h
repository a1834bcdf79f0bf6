#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>

#include "net/http_server.h"

namespace cairn::master {

/// The web page's files in a directory. A path that is no file gets index.html, because the page
/// finds its way by itself; when there is none NotFound, and at "/" a text that says how to get
/// the page. Nothing outside the directory can be named. May be called from any thread.
Result<ServerResponse> WebFile(const std::string& directory, std::string_view path);

/// Ok when the directory has a web page; otherwise NotFound, saying how one comes by it.
Status CheckPage(const std::string& directory);

/// Headers of the page: a strict Content-Security-Policy, no framing, no guessing of types.
std::vector<HttpHeader> PageHeaders();

}  // namespace cairn::master
