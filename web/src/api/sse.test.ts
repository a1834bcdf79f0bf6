import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { EventStream, growingPause, SseParser, type SseEvent } from "./sse";

describe("the parser of events", () => {
  const text = "id: 1\nevent: log\ndata: a\ndata: b\n\n: comment\n\ndata:c\r\nid:2\r\n\r\n";
  const expected = [{ id: "1", event: "log", data: "a\nb" }, { id: "2", event: "message", data: "c" }];
  it("gives the same wherever the text is cut", () => {
    for (let cut = 0; cut <= text.length; cut++) {
      const parser = new SseParser();
      expect([...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))]).toEqual(expected);
    }
    const parser = new SseParser();
    expect([...text].flatMap((letter) => parser.push(letter))).toEqual(expected);
  });
  it("hands out an event without data", () => {
    expect(new SseParser().push("event: reset\n\n")).toEqual([{ id: null, event: "reset", data: "" }]);
  });
});

describe("pauses", () => {
  it("grow and stay bounded", () => {
    expect(growingPause(0)).toBe(250);
    expect(growingPause(1)).toBe(500);
    expect(growingPause(100)).toBe(5000);
  });
});

describe("a stream", () => {
  let stop: () => void = () => {};
  afterEach(() => stop());
  const serve = (handler: (request: IncomingMessage, response: ServerResponse) => void): Promise<string> =>
    new Promise((resolve) => {
      const server = createServer(handler);
      server.listen(0, "127.0.0.1", () => resolve(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`));
      stop = () => {
        server.closeAllConnections();
        server.close();
      };
    });

  it("that breaks is asked for again from the last event, also after an error", async () => {
    const asked: (string | undefined)[] = [];
    const url = await serve((request, response) => {
      asked.push(request.headers["last-event-id"] as string | undefined);
      if (asked.length === 2) {
        response.writeHead(503).end("{}");
        return;
      }
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      response.write(`id: ${asked.length * 10}\ndata: ${asked.length}\n\n`, () => {
        if (asked.length === 1) response.destroy();
      });
    });
    const seen: SseEvent[] = [];
    await new Promise<void>((resolve) => {
      const stream = new EventStream({
        url, pause: () => 1,
        onEvent: (event) => {
          seen.push(event);
          if (seen.length === 2) {
            stream.close();
            resolve();
          }
        },
      });
    });
    expect(asked).toEqual([undefined, "10", "10"]);
    expect(seen.map((event) => event.data)).toEqual(["1", "3"]);
  });

  it("that may not be looked at is given up", async () => {
    let asked = 0;
    const url = await serve((_request, response) => {
      asked++;
      response.writeHead(403, { "Content-Type": "application/json" }).end('{"code":"forbidden","message":"no","details":{}}');
    });
    const code = await new Promise((resolve) => {
      new EventStream({ url, pause: () => 1, onEvent: () => {}, onState: (_open, error) => resolve(error?.code) });
    });
    expect(code).toBe("forbidden");
    expect(asked).toBe(1);
  });
});
