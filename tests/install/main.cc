// What a user of the installed package writes: public headers, one library.

#include <cstdio>
#include <string>

#include <cairn/status.h>

int main() {
  const cairn::Status missing = cairn::NotFoundError("no checkpoint");
  if (missing.ok() || missing.ToString().find("no checkpoint") == std::string::npos) {
    std::fprintf(stderr, "unexpected status: %s\n", missing.ToString().c_str());
    return 1;
  }
  std::puts("ok");
  return 0;
}
