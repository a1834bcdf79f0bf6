#pragma once

#include <string>

#include <cairn/status.h>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace cairn {

/// What a server shows of itself. Both or none.
struct TlsFiles {
  std::string
      certificate;  // PEM: the server's certificate, then those between it and the authority
  std::string key;  // PEM, without a passphrase

  bool empty() const { return certificate.empty() && key.empty(); }
};

/// Makes the context that of a server: TLS 1.2 or newer, with this certificate and key. Errors name
/// the file: NotFound, PermissionDenied (it cannot be read), InvalidArgument (one of the two is not
/// named, no certificate, no key, a key with a passphrase, or one of another certificate).
Status LoadTlsFiles(const TlsFiles& files, ssl_ctx_st* context);

/// The same comparison for servers that read the files by themselves.
Status CheckTlsFiles(const TlsFiles& files);

}  // namespace cairn
