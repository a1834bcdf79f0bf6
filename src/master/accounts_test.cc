#include "master/accounts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "base/manual_clock.h"
#include "catalog/catalog.h"
#include "master/rate_limit.h"
#include "storage/local/temp_directory.h"

namespace cairn::master {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

class AccountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    catalog_ = Catalog::Open({.url = "sqlite:" + (directory_ / "cairn.db")}).value();
    accounts_ =
        Accounts::Open({.catalog = &catalog_->accounts(), .clock = &clock_, .weak_hashes = true})
            .value();
    ASSERT_TRUE(accounts_->Create("ada", "correct horse", Role::kUser).ok());
  }

  TempDirectory directory_;
  ManualClock clock_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Accounts> accounts_;
};

TEST_F(AccountsTest, SessionsEndAfterADay) {
  const Session session = accounts_->Login("ada", "correct horse").value();
  EXPECT_EQ(accounts_->Authenticate(session.token)->name, "ada");
  EXPECT_TRUE(accounts_->StillValid(session.who));
  clock_.Advance(hours(24) - seconds(1));
  EXPECT_TRUE(accounts_->Authenticate(session.token).ok());
  clock_.Advance(seconds(2));
  EXPECT_TRUE(accounts_->Authenticate(session.token).status().Is(Code::kPermissionDenied));
  EXPECT_FALSE(accounts_->StillValid(session.who));
  // Also after it was forgotten for good, and in another life of the master.
  ASSERT_TRUE(accounts_->Tidy().ok());
  accounts_ =
      Accounts::Open({.catalog = &catalog_->accounts(), .clock = &clock_, .weak_hashes = true})
          .value();
  EXPECT_FALSE(accounts_->Authenticate(session.token).ok());
}

TEST_F(AccountsTest, TokensEndWhenTheyWereToldTo) {
  const std::int64_t user = accounts_->Get("ada")->id;
  const auto brief = accounts_->CreateToken(user, "an hour", 3600).value();
  const auto lasting = accounts_->CreateToken(user, "for ever", 0).value();
  clock_.Advance(hours(1));
  EXPECT_FALSE(accounts_->Authenticate(brief.secret).ok());
  EXPECT_EQ(accounts_->ListTokens(user).size(), 1u);
  clock_.Advance(hours(10'000));
  EXPECT_TRUE(accounts_->Authenticate(lasting.secret).ok());
}

TEST_F(AccountsTest, ALoginCodeEndsAfterTenMinutes) {
  const std::int64_t user = accounts_->Get("ada")->id;
  const std::string late = accounts_->NewLoginCode(user).value();
  clock_.Advance(minutes(10));
  EXPECT_FALSE(accounts_->LoginWithCode(late).ok());
  const std::string in_time = accounts_->NewLoginCode(user).value();
  clock_.Advance(minutes(9));
  EXPECT_TRUE(accounts_->LoginWithCode(in_time).ok());
  EXPECT_FALSE(accounts_->LoginWithCode(in_time).ok()) << "once";
}

TEST_F(AccountsTest, WhoIsLockedOutIsLetInAgainLater) {
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(accounts_->Login("ada", "guess").ok());
  EXPECT_TRUE(accounts_->Login("ada", "correct horse").status().Is(Code::kResourceExhausted));
  clock_.Advance(minutes(1));
  EXPECT_TRUE(accounts_->Login("ada", "correct horse").ok());
}

/// In both orders, and in between: passwords take milliseconds to hash.
void AtOnce(const std::function<void()>& one, const std::function<void()>& other) {
  const std::jthread beside(one);
  other();
}

TEST_F(AccountsTest, WhoIsLockedOutWhileHisPasswordChangesStaysOut) {
  const Principal admin{.user = accounts_->Get("admin")->id, .name = "admin", .role = Role::kAdmin};
  for (int round = 0; round < 20; ++round) {
    const std::string name = fmt::format("user{}", round);
    const User user = accounts_->Create(name, "correct horse", Role::kUser).value();
    const Principal own{.user = user.id, .name = name, .role = Role::kUser};
    AtOnce(
        [&] {
          accounts_
              ->Update(own, name,
                       {.password = "battery staple", .current_password = "correct horse"})
              .status()
              .IgnoreError("either of the two may be first");
        },
        [&] { EXPECT_TRUE(accounts_->Update(admin, name, {.active = false}).ok()); });
    EXPECT_FALSE(accounts_->Get(name)->active) << round;
    EXPECT_FALSE(accounts_->Login(name, "battery staple").ok()) << round;
  }
}

TEST_F(AccountsTest, ALoginWithAPasswordThatChangesMeanwhileIsNone) {
  const Principal admin{.user = accounts_->Get("admin")->id, .name = "admin", .role = Role::kAdmin};
  for (int round = 0; round < 20; ++round) {
    const std::string name = fmt::format("user{}", round);
    ASSERT_TRUE(accounts_->Create(name, "correct horse", Role::kUser).ok());
    Result<Session> session = InternalError("not asked");
    AtOnce(
        [&] { session = accounts_->Login(name, "correct horse"); },
        [&] { EXPECT_TRUE(accounts_->Update(admin, name, {.password = "battery staple"}).ok()); });
    // One that was there before went with the old password.
    EXPECT_FALSE(session.ok() && accounts_->Authenticate(session->token).ok()) << round;
  }
}

TEST_F(AccountsTest, WhatARequestWasJudgedByHoldsUntilItIsTakenBack) {
  const Session session = accounts_->Login("ada", "correct horse").value();
  const Session other = accounts_->Login("ada", "correct horse").value();
  const Principal admin{.name = "admin", .role = Role::kAdmin};
  ASSERT_TRUE(accounts_->Logout(session.who).ok());
  EXPECT_FALSE(accounts_->StillValid(session.who));
  EXPECT_TRUE(accounts_->StillValid(other.who));
  ASSERT_TRUE(accounts_->Update(admin, "ada", {.active = false}).ok());
  EXPECT_FALSE(accounts_->StillValid(other.who));
}

TEST(RateLimitTest, ABurstThenSoManyASecondForEachCaller) {
  ManualClock clock;
  RateLimit limit(10, 20, &clock);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(limit.Admit("ada")) << i;
  EXPECT_FALSE(limit.Admit("ada"));
  EXPECT_TRUE(limit.Admit("bob")) << "others are not slowed down";
  clock.Advance(seconds(1));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(limit.Admit("ada")) << i;
  EXPECT_FALSE(limit.Admit("ada"));
  clock.Advance(hours(1));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(limit.Admit("ada")) << i;
  EXPECT_FALSE(limit.Admit("ada")) << "what was not used is not saved up";
}

TEST(RateLimitTest, WithoutALimitAllAreAdmitted) {
  ManualClock clock;
  RateLimit limit(0, 0, &clock);
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(limit.Admit("ada"));
  RateLimit little(0.1, 0.4, &clock);
  EXPECT_TRUE(little.Admit("ada")) << "a burst that holds no request would hold none ever";
  EXPECT_FALSE(little.Admit("ada"));
}

TEST(RateLimitTest, ManyCallersAreForgottenOnlyWhenTheyMayAskAsMuchAsNewOnes) {
  ManualClock clock;
  RateLimit limit(10, 20, &clock);
  for (int i = 0; i < 10'000; ++i) limit.Admit(fmt::format("early {}", i));
  clock.Advance(hours(1));
  for (int i = 0; i < 20; ++i) limit.Admit("ada");
  for (int i = 0; i < 9'000; ++i) limit.Admit(fmt::format("late {}", i));
  EXPECT_FALSE(limit.Admit("ada")) << "she had used up hers";
}

TEST(RateLimitTest, CallersAreToldApartByWhatOneOfThemHas) {
  EXPECT_EQ(NetworkOf("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(NetworkOf("::ffff:10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(NetworkOf("2001:db8:1:2:aaaa::1"), NetworkOf("2001:db8:1:2:bbbb::2"));
  EXPECT_NE(NetworkOf("2001:db8:1:2::1"), NetworkOf("2001:db8:1:3::1"));
  EXPECT_EQ(NetworkOf(""), "");
}

}  // namespace
}  // namespace cairn::master
