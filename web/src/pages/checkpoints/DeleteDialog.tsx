import type { ReactNode } from "react";
import { api } from "../../api/client";
import type { Checkpoint } from "../../api/types";
import { Dialog } from "../../components/Dialog";
import { Failure, Waiting } from "../../components/basics";
import { useResource } from "../../components/hooks";
import { say } from "../../components/Toasts";
import { formatBytes, shortId } from "../../model/format";

/** Asks the master first what would go and what stays, and why. */
export function DeleteDialog({ checkpoints, onDone, onClose }: { checkpoints: Checkpoint[]; onDone: () => void; onClose: () => void }): ReactNode {
  const ids = checkpoints.map((one) => one.id);
  const plan = useResource(`delete ${ids.join(",")}`, () => api.removeCheckpoints(ids, true));
  const later = plan.data?.left_to_run.length ?? 0;
  const count = (plan.data?.removed.length ?? 0) + later;
  const remove = async (): Promise<void> => {
    const done = await api.removeCheckpoints(ids, false);
    const left = done.left_to_run.length;
    if (left === 0 || done.removed.length > 0) say(`${done.removed.length} removed${left === 0 ? `, ${formatBytes(done.bytes)} freed` : ""}.`);
    if (left > 0) say(`${left} will be removed by the running trial, with its next checkpoint.`);
    if (done.kept.length > 0) say(done.kept.map((one) => `${shortId(one.id)} stays: ${one.reason}`).join("\n"), true);
    onDone();
  };
  return (
    <Dialog title={ids.length === 1 ? `Delete the checkpoint of step ${checkpoints[0]!.steps_completed}?` : `Delete ${ids.length} checkpoints?`} submit={`Delete ${count}`} danger disabled={count === 0} onSubmit={remove} onClose={onClose}>
      {plan.error ? <Failure error={plan.error} /> : !plan.data ? <Waiting /> : (
        <>
          {count > 0 && <p>{count === 1 ? "It is" : `${count} are`} removed with {formatBytes(plan.data.bytes)} and cannot be brought back.</p>}
          {later > 0 && <p>{later === count ? "The trial runs" : `Of ${later} the trial runs`}: it removes {later === 1 ? "it" : "them"} itself, with its next checkpoint or when it ends.</p>}
          {plan.data.kept.length > 0 && (
            <>
              <p>{plan.data.kept.length === 1 ? "One stays:" : `${plan.data.kept.length} stay:`}</p>
              <ul className="short-list">{plan.data.kept.map((one) => <li key={one.id}><code>{shortId(one.id)}</code> {one.reason}</li>)}</ul>
            </>
          )}
        </>
      )}
    </Dialog>
  );
}
