#include "net/tls_files.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/status_macros.h"

namespace cairn {
namespace {

/// OpenSSL says only that it failed: whoever mistyped a path is told so.
Status CheckReadable(std::string_view what, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    const int error = errno;
    const std::string message =
        fmt::format("TLS: the {} \"{}\": {}", what, path, std::strerror(error));
    if (error == ENOENT || error == ENOTDIR) return NotFoundError(message);
    return PermissionDeniedError(message);
  }
  struct stat info = {};
  const bool regular = fstat(fileno(file), &info) == 0 && !S_ISDIR(info.st_mode);
  std::fclose(file);
  if (regular) return Status::Ok();
  return InvalidArgumentError(fmt::format("TLS: the {} \"{}\" is a directory", what, path));
}

/// The oldest error of this thread's queue, which is the cause; empties it.
std::string TakeReason() {
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "unknown" : reason;
}

/// OpenSSL would ask at the terminal. The context is left as it was: its owner takes what is set
/// there for its own.
class NoPassphrase {
 public:
  explicit NoPassphrase(SSL_CTX* context) : context_(context) {
    SSL_CTX_set_default_passwd_cb(context_, [](char*, int, int, void* asked) {
      *static_cast<bool*>(asked) = true;
      return -1;
    });
    SSL_CTX_set_default_passwd_cb_userdata(context_, &asked_);
  }
  ~NoPassphrase() {
    SSL_CTX_set_default_passwd_cb(context_, nullptr);
    SSL_CTX_set_default_passwd_cb_userdata(context_, nullptr);
  }
  NoPassphrase(const NoPassphrase&) = delete;
  NoPassphrase& operator=(const NoPassphrase&) = delete;
  bool asked() const { return asked_; }

 private:
  SSL_CTX* const context_;
  bool asked_ = false;
};

}  // namespace

Status LoadTlsFiles(const TlsFiles& files, ssl_ctx_st* context) {
  if (files.certificate.empty() || files.key.empty()) {
    return InvalidArgumentError(files.key.empty()
                                    ? "TLS: the certificate needs its key: name both files"
                                    : "TLS: the key needs its certificate: name both files");
  }
  RETURN_IF_ERROR(CheckReadable("certificate", files.certificate));
  RETURN_IF_ERROR(CheckReadable("key", files.key));
  ERR_clear_error();
  const NoPassphrase passphrase(context);
  if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
    return InternalError("TLS: version 1.2: " + TakeReason());
  }
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return InvalidArgumentError(fmt::format("TLS: \"{}\" is no certificate in PEM form: {}",
                                            files.certificate, TakeReason()));
  }
  const bool loaded =
      SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1;
  if (passphrase.asked()) {
    ERR_clear_error();
    return InvalidArgumentError(fmt::format(
        "TLS: the key \"{0}\" has a passphrase; write one without: openssl pkey -in {0} -out FILE",
        files.key));
  }
  // Loading compares the two already: the reason tells a key of another from no key.
  if (!loaded && ERR_GET_REASON(ERR_peek_error()) != X509_R_KEY_VALUES_MISMATCH &&
      ERR_GET_REASON(ERR_peek_error()) != X509_R_KEY_TYPE_MISMATCH) {
    return InvalidArgumentError(
        fmt::format("TLS: \"{}\" is no key in PEM form: {}", files.key, TakeReason()));
  }
  if (!loaded || SSL_CTX_check_private_key(context) != 1) {
    ERR_clear_error();
    return InvalidArgumentError(fmt::format(
        "TLS: the key \"{}\" is not that of the certificate \"{}\"", files.key, files.certificate));
  }
  return Status::Ok();
}

Status CheckTlsFiles(const TlsFiles& files) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                  SSL_CTX_free);
  if (context == nullptr) return ResourceExhaustedError("TLS: " + TakeReason());
  return LoadTlsFiles(files, context.get());
}

}  // namespace cairn
