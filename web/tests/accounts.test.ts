// Users, their passwords and tokens.
import { describe, expect, it } from "vitest";
import { violations } from "./browser";
import { Stage } from "./stage";

const stage = new Stage();
const SECRET = "cairn_secret_of_the_test";

describe("a token", () => {
  it("is made, shown once, and taken back", async () => {
    const { page } = await stage.look("viewer", "#/account");
    await page.getByRole("button", { name: "New token…" }).click();
    expect(await page.getByRole("button", { name: "Make it" }).isDisabled()).toBe(true);
    await page.getByLabel("What it is for").fill("nightly");
    await page.getByLabel("Works for").selectOption("a day");
    expect(await violations(page)).toEqual([]);
    await page.getByRole("button", { name: "Make it" }).click();
    await page.getByText(`export CAIRN_TOKEN=${SECRET}`).waitFor();
    expect(stage.master.requests.find((one) => one.method === "POST" && one.url === "/api/v1/tokens")!.body).toEqual({ name: "nightly", expires_seconds: 86400 });
    await page.getByRole("button", { name: "Close" }).click();
    await page.getByRole("button", { name: "Delete token nightly" }).waitFor();
    expect(await page.content()).not.toContain(SECRET);
    expect(page.url()).not.toContain(SECRET);
    await page.getByRole("button", { name: "Delete token nightly" }).click();
    await page.getByText("What uses it is refused from now on.").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await page.getByRole("button", { name: "Delete token nightly" }).waitFor({ state: "detached" });
    expect(stage.master.tokens.map((one) => one.name)).toEqual(["laptop"]);
  });
});

describe("a password", () => {
  it("is changed with the present one, typed twice", async () => {
    const { page } = await stage.look("user", "#/account");
    await page.getByRole("button", { name: "Change the password…" }).click();
    const change = page.getByRole("button", { name: "Change", exact: true });
    await page.getByLabel("Present password").fill("password");
    await page.getByLabel("New password").fill("another one");
    await page.getByLabel("Once more").fill("another two");
    await page.getByText("The two differ").waitFor();
    expect(await change.isDisabled()).toBe(true);
    await page.getByLabel("Once more").fill("another one");
    await change.click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    expect(stage.master.requests.find((one) => one.method === "PATCH")).toMatchObject({ url: "/api/v1/users/user", body: { password: "another one", current_password: "password" } });
  });
});

describe("users", () => {
  it("are added, given other roles, shut out and given passwords by an admin", async () => {
    const { page } = await stage.look("admin", "#/users");
    await page.getByRole("button", { name: "New user…" }).click();
    await page.getByLabel("Name").fill("ada");
    await page.getByLabel("Role", { exact: true }).selectOption("viewer");
    await page.getByRole("dialog").getByLabel("Password").fill("short");
    expect(await page.getByRole("button", { name: "Add" }).isDisabled()).toBe(true);
    await page.getByRole("dialog").getByLabel("Password").fill("long enough");
    await page.getByRole("button", { name: "Add" }).click();
    await page.getByLabel("Role of ada").waitFor();
    expect(stage.master.users.at(-1)).toMatchObject({ username: "ada", role: "viewer", active: true });
    await page.getByLabel("Role of ada").selectOption("user");
    await expect.poll(() => stage.master.users.at(-1)!.role).toBe("user");
    await page.getByLabel("ada may log in").uncheck();
    await expect.poll(() => stage.master.users.at(-1)!.active).toBe(false);
    await page.getByRole("button", { name: "New password for ada" }).click();
    await page.getByRole("dialog").getByLabel("Password").fill("another long one");
    await page.getByRole("button", { name: "Set" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    expect(stage.master.requests.filter((one) => one.method === "PATCH").at(-1)).toMatchObject({ method: "PATCH", url: "/api/v1/users/ada", body: { password: "another long one" } });
    // Nobody shuts themselves out.
    expect(await page.getByLabel("Role of admin").isDisabled()).toBe(true);
    expect(await page.getByLabel("admin may log in").isDisabled()).toBe(true);
  });
});
