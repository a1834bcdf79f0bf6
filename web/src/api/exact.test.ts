import { describe, expect, it } from "vitest";
import { parseExactly, writeExactly } from "./exact";

describe("integers beyond 53 bits", () => {
  const text = '{"id":"7","metadata":{"seed":18446744073709551615,"least":-9223372036854775808,"near":9007199254740993,"small":5,"list":[1152921504606846977],"text":"9007199254740993 \\"9007199254740993","float":1e+21,"long":0.12345678901234567},"value":9007199254740993}';
  const answer = parseExactly(text) as { metadata: Record<string, never>; value: number };

  it("keep their digits where they are shown, and are numbers where one computes", () => {
    expect(answer.metadata).toEqual({ seed: 18446744073709551615n, least: -9223372036854775808n, near: 9007199254740993n, small: 5, list: [1152921504606846977n], text: '9007199254740993 "9007199254740993', float: 1e21, long: 0.12345678901234567 });
    expect(answer.value).toBe(9007199254740992);
  });

  it("are written as they came", () => {
    expect(writeExactly({ seed: answer.metadata["seed"]!, text: "1" })).toBe('{"seed":18446744073709551615,"text":"1"}');
    expect(writeExactly(undefined)).toBe("");
  });

  it("cost nothing where there are none", () => {
    expect(parseExactly('{"config":{"lr":0.1},"n":[1,null]}')).toEqual({ config: { lr: 0.1 }, n: [1, null] });
  });
});
