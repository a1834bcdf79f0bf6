import { createRoot } from "react-dom/client";
import { App } from "./App";
import { applyTheme } from "./components/theme";
import "./styles.css";

applyTheme();
createRoot(document.getElementById("root")!).render(<App />);
