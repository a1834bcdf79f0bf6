import { createRoot } from "react-dom/client";
import { App } from "./App";
import { applyTheme } from "./components/theme";
import { addressOfPath } from "./model/route";
import "./styles.css";

applyTheme();
const address = addressOfPath(window.location);
if (address !== null) window.history.replaceState(null, "", address);
createRoot(document.getElementById("root")!).render(<App />);
