// Logging in, users, tokens.
#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "master/api.h"
#include "master/api_json.h"

namespace cairn::master {
namespace {

ServerResponse TooManyLogins(std::string_view message) {
  ServerResponse response = ErrorResponse(429, "too_many_requests", message);
  response.headers.push_back({"Retry-After", "60"});
  return response;
}

Status Login(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  std::string name;
  std::string password;
  std::string code;
  bool cookie = false;
  BodyReader body(call);
  body->Text("username", &name);
  body->Text("password", &password);
  body->Text("code", &code);
  body->Bool("cookie", &cookie);
  RETURN_IF_ERROR(body->Finish());
  if (code.empty() == name.empty()) {
    return InvalidArgumentError("give username and password, or the code of a link");
  }
  if (name.size() > 64 || password.size() > 1024 || code.size() > 256) {
    return InvalidArgumentError("username: at most 64 bytes; password: 1024; code: 256");
  }
  const auto session =
      code.empty() ? parts.accounts->Login(name, password) : parts.accounts->LoginWithCode(code);
  if (session.status().Is(Code::kResourceExhausted)) {
    reply.Send(TooManyLogins(session.status().message()));
    return Status::Ok();
  }
  RETURN_IF_ERROR(session.status());
  ASSIGN_OR_RETURN(const User user, parts.accounts->Get(session->who.name));
  const double seconds = static_cast<double>(session->expires - parts.clock->WallNanos()) / 1e9;
  Value::Object answer{{"user", ToJson(user)},
                       {"expires", static_cast<double>(session->expires) / 1e9}};
  ServerResponse response{.headers = {{"Cache-Control", "no-store"}}};
  if (cookie) {
    response.headers.push_back(
        {"Set-Cookie",
         fmt::format("cairn_session={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{}",
                     session->token, static_cast<std::int64_t>(seconds),
                     parts.secure ? "; Secure" : "")});
  } else {
    answer["token"] = session->token;
  }
  response.body = EncodeJson(Value(std::move(answer)));
  reply.Send(std::move(response));
  return Status::Ok();
}

Result<Role> RoleIn(const std::string& name) {
  const auto role = RoleFromName(name);
  if (!role) return InvalidArgumentError("role must be viewer, user or admin");
  return *role;
}

Result<ApiAnswer> CreateUser(const ApiParts& parts, const ApiCall& call) {
  std::string name;
  std::string role;
  std::string password;
  BodyReader body(call);
  body->Text("username", &name);
  body->Text("role", &role);
  body->Text("password", &password);
  RETURN_IF_ERROR(body->Finish());
  if (password.size() > 1024) return InvalidArgumentError("password: at most 1024 bytes");
  ASSIGN_OR_RETURN(const Role parsed, RoleIn(role));
  std::optional<std::string> given;
  if (call.body.Find("password") != nullptr) given = password;
  ASSIGN_OR_RETURN(const User user, parts.accounts->Create(name, given, parsed));
  return ApiAnswer{.status = 201, .body = ToJson(user)};
}

Result<ApiAnswer> PatchUser(const ApiParts& parts, const ApiCall& call) {
  Accounts::Change change;
  std::string role;
  std::string password;
  std::string current;
  bool active = true;
  BodyReader body(call);
  body->Text("role", &role);
  body->Text("password", &password);
  body->Text("current_password", &current);
  body->Bool("active", &active);
  RETURN_IF_ERROR(body->Finish());
  if (password.size() > 1024 || current.size() > 1024) {
    return InvalidArgumentError("password: at most 1024 bytes");
  }
  const auto given = [&](std::string_view key) {
    const Value* found = call.body.Find(key);
    return found != nullptr && !found->is_null();
  };
  if (given("role")) {
    ASSIGN_OR_RETURN(change.role, RoleIn(role));
  }
  if (given("password")) change.password = password;
  if (given("current_password")) change.current_password = current;
  if (given("active")) change.active = active;
  ASSIGN_OR_RETURN(const User user, parts.accounts->Update(call.who, call.Param("user"), change));
  return ApiAnswer{.body = ToJson(user)};
}

Result<ApiAnswer> ListTokens(const ApiParts& parts, const ApiCall& call) {
  std::int64_t user = call.who.user;
  std::string name = call.who.name;
  if (const std::string_view asked = call.Query("user"); !asked.empty() && asked != name) {
    if (call.who.role != Role::kAdmin) return NotFoundError("no such user");
    ASSIGN_OR_RETURN(const User found, parts.accounts->Get(std::string(asked)));
    user = found.id;
    name = found.name;
  }
  Value::List tokens;
  for (const Token& token : parts.accounts->ListTokens(user)) {
    tokens.push_back(ToJson(token, name));
  }
  return ApiAnswer{.body = Value::Object{{"tokens", std::move(tokens)}}};
}

Result<ApiAnswer> CreateToken(const ApiParts& parts, const ApiCall& call) {
  std::string name;
  double seconds = 0;
  BodyReader body(call);
  body->Text("name", &name);
  body->Double("expires_seconds", &seconds);
  RETURN_IF_ERROR(body->Finish());
  const Value* given = call.body.Find("expires_seconds");
  if (name.empty() || name.size() > 128) return InvalidArgumentError("name: 1 to 128 bytes");
  if (given != nullptr && !given->is_null() && !(seconds >= 1 && seconds <= 315360000)) {
    return InvalidArgumentError("expires_seconds must be from 1 to 315360000");
  }
  ASSIGN_OR_RETURN(const auto made, parts.accounts->CreateToken(call.who.user, name, seconds));
  Value answer = ToJson(made.token, call.who.name);
  (*answer.if_object())["token"] = made.secret;
  return ApiAnswer{.status = 201, .body = std::move(answer)};
}

Result<ApiAnswer> DeleteToken(const ApiParts& parts, const ApiCall& call) {
  const std::string& text = call.Param("token");
  std::int64_t id = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, id);
  if (parsed.ec != std::errc() || parsed.ptr != end) return NotFoundError("no such token");
  RETURN_IF_ERROR(parts.accounts->DeleteToken(call.who, id));
  return ApiAnswer{};
}

}  // namespace

void AddAccountRoutes(const ApiParts& parts, std::vector<ApiRoute>* out) {
  const RoutesUnder add("/api/v1", out);
  add("POST", "/auth/login", Access::kNone, [parts](const ApiCall& call, const HttpReply& reply) {
    return Login(parts, call, reply);
  }).max_body_bytes = 16u << 10;
  add("POST", "/auth/logout", Access::kViewer, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    RETURN_IF_ERROR(parts.accounts->Logout(call.who));
    return ApiAnswer{};
  });
  add("POST", "/auth/code", Access::kViewer, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const std::string code, parts.accounts->NewLoginCode(call.who.user));
    return ApiAnswer{.status = 201, .body = Value::Object{{"code", code}}};
  });
  add("GET", "/auth/whoami", Access::kViewer, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const User user, parts.accounts->Get(call.who.name));
    return ApiAnswer{.body = ToJson(user)};
  });
  add("GET", "/users", Access::kAdmin, [parts](const ApiCall&) -> Result<ApiAnswer> {
    Value::List users;
    for (const User& user : parts.accounts->List()) users.push_back(ToJson(user));
    return ApiAnswer{.body = Value::Object{{"users", std::move(users)}}};
  });
  add("POST", "/users", Access::kAdmin,
      [parts](const ApiCall& call) { return CreateUser(parts, call); });
  add("GET", "/users/{user}", Access::kAdmin, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const User user, parts.accounts->Get(call.Param("user")));
    return ApiAnswer{.body = ToJson(user)};
  });
  add("PATCH", "/users/{user}", Access::kViewer,
      [parts](const ApiCall& call) { return PatchUser(parts, call); });
  add("GET", "/tokens", Access::kViewer,
      [parts](const ApiCall& call) { return ListTokens(parts, call); });
  add("POST", "/tokens", Access::kViewer,
      [parts](const ApiCall& call) { return CreateToken(parts, call); });
  add("DELETE", "/tokens/{token}", Access::kViewer,
      [parts](const ApiCall& call) { return DeleteToken(parts, call); });
}

}  // namespace cairn::master
