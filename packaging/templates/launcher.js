#!/usr/bin/env node
// Runs the binary of this platform's package with the same arguments, and passes signals on.
"use strict";

const { spawn } = require("node:child_process");

const name = `@SCOPE@/${process.platform}-${process.arch}`;
let binary;
try {
  binary = require.resolve(`${name}/bin/souffleur`);
} catch {
  console.error(`souffleur: there is no package ${name}: install with optional dependencies, or from a release archive`);
  process.exit(1);
}
const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`souffleur: failed to start ${binary}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code);
  }
});
