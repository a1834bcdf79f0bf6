import { useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { Empty, Failure, Waiting } from "../../components/basics";
import { useResource } from "../../components/hooks";
import { formatBytes } from "../../model/format";

export function CodeTab({ experiment }: { experiment: Experiment }): ReactNode {
  const files = useResource(`code ${experiment.id}`, async (signal) => (experiment.code === null ? { files: [], total: 0, bytes: 0 } : api.codeFiles(experiment.id, signal)));
  const [chosen, setChosen] = useState<string | null>(null);
  if (experiment.code === null) return <Empty title="This experiment has no code." command={`cairn experiment create CONFIG DIR`}>Code is uploaded with the directory that is named after the config.</Empty>;
  if (files.error && !files.data) return <Failure error={files.error} retry={files.reload} />;
  if (!files.data) return <Waiting />;
  const path = chosen ?? files.data.files.find((file) => /\.(py|cc|cpp|sh|ya?ml)$/.test(file.path))?.path ?? files.data.files[0]?.path;
  return (
    <div className="split">
      <nav className="panel file-list" aria-label="Files of the code">
        <p><a href={api.codeAddress(experiment.id)} download={`experiment-${experiment.id}.tar.gz`}>Download all ({formatBytes(files.data.bytes)})</a></p>
        <ul>
          {files.data.files.map((file) => (
            <li key={file.path}>
              <button type="button" className="link" aria-pressed={file.path === path} onClick={() => setChosen(file.path)}>{file.path}</button>
              <span className="faint"> {formatBytes(file.bytes)}</span>
            </li>
          ))}
        </ul>
      </nav>
      {path && <FileText key={path} experiment={experiment.id} path={path} />}
    </div>
  );
}

function FileText({ experiment, path }: { experiment: string; path: string }): ReactNode {
  const text = useResource(`code ${experiment} ${path}`, (signal) => api.codeFile(experiment, path, signal));
  return (
    <section className="panel" aria-labelledby="file-name">
      <h2 id="file-name">{path}</h2>
      {text.error ? <Failure error={text.error} retry={text.reload} /> : text.data === undefined ? <Waiting />
        : <pre tabIndex={0} aria-label={`Text of ${path}`}>{text.data}</pre>}
    </section>
  );
}
