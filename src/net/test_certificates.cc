#include "net/test_certificates.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

namespace cairn {

TestCertificates::TestCertificates(std::string directory) : directory_(std::move(directory)) {
  std::filesystem::create_directories(directory_);
  const std::string command = fmt::format(
      "cd '{}' && exec 2>openssl.log && "
      "NEW='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes' && "
      "openssl req -x509 $NEW -days 2 -subj '/CN=Cairn test authority' -keyout ca.key -out ca.crt "
      "&& "
      "openssl req $NEW -subj /CN=cairn.test -keyout server.key -out server.csr && "
      "echo subjectAltName=DNS:cairn.test,DNS:localhost,IP:127.0.0.1 >names && "
      "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
      "-extfile names -out server.crt && "
      "openssl pkey -in server.key -aes128 -passout pass:secret -out locked.key",
      directory_);
  ok_ = std::system(command.c_str()) == 0;
}

}  // namespace cairn
