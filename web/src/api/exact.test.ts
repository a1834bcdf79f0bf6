import { describe, expect, it } from "vitest";
import { parseAllExactly, parseExactly, writeExactly } from "./exact";

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

  it("are found wherever they stand, and nothing else is taken for one", () => {
    for (const shown of [
      '{"a":"\\\\","n":12345678901234567890}', '{"a":"\\\\\\"12345678901234567890","n":-12345678901234567890}', '[12345678901234567890,{"x":[-12345678901234567890]},0]',
      '{"12345678901234567890":"12345678901234567890"}', '"9007199254740993"', "9007199254740993", '{"__proto__":{"n":9007199254740993}}', '{"a":"\\u0000integer x","n":12345678901234567890}',
    ]) expect(writeExactly((parseExactly(`{"metadata":${shown}}`) as { metadata: never }).metadata)).toBe(shown);
    for (const value of ["1234567890123456789e2", "-0.12345678901234567", "1.2345678901234567e+21", "12345678901234567.5"])
      expect((parseExactly(`{"metadata": ${value}, "n": 12345678901234567890}`) as { metadata: number }).metadata).toBe(Number(value));
    expect(() => parseAllExactly("{12345678901234567890: 1}")).toThrow(SyntaxError);
  });

  it("are numbers in metrics, whatever those are called", () => {
    expect(parseExactly('{"metrics":[{"values":{"config":{"n":9007199254740993}}}],"hparams":{"values":9007199254740993}}')).toEqual({ metrics: [{ values: { config: { n: 9007199254740992 } } }], hparams: { values: 9007199254740993n } });
  });

  it("are read beside long texts", () => {
    const text = `{"text":${JSON.stringify("x".repeat(5e7))},"metadata":{"n":12345678901234567890}}`;
    expect((parseExactly(text) as { metadata: unknown }).metadata).toEqual({ n: 12345678901234567890n });
  });

  it("cost nothing where there are none", () => {
    expect(parseExactly('{"config":{"lr":0.1},"n":[1,null]}')).toEqual({ config: { lr: 0.1 }, n: [1, null] });
  });
});
