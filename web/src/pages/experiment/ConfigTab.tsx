import type { ReactNode } from "react";
import { api } from "../../api/client";
import { writeExactly } from "../../api/exact";
import type { Experiment } from "../../api/types";
import { Command, Failure, Waiting } from "../../components/basics";
import { useResource } from "../../components/hooks";
import { useMay } from "../../components/session";

export function ConfigTab({ experiment }: { experiment: Experiment }): ReactNode {
  const may = useMay("user");
  const config = useResource(`config ${experiment.id}`, (signal) => api.config(experiment.id, signal));
  return (
    <div className="panels two">
      <section className="panel" aria-labelledby="written">
        <h2 id="written">As it was written</h2>
        {config.error ? <Failure error={config.error} retry={config.reload} /> : config.data === undefined ? <Waiting />
          : <pre tabIndex={0} aria-label="Config as it was written">{config.data}</pre>}
        {may && experiment.config?.["detached"] !== true && <p className="faint">To run it again with changes: <Command text={`cairn experiment continue ${experiment.id} --new --config hyperparameters.NAME=VALUE`} /></p>}
      </section>
      {experiment.config && (
        <section className="panel" aria-labelledby="filled">
          <h2 id="filled">With all defaults</h2>
          <pre tabIndex={0} aria-label="Config with all defaults">{writeExactly(experiment.config, 2)}</pre>
        </section>
      )}
    </div>
  );
}
