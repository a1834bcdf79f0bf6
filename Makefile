# The commands of the project. Each installs what it needs on a fresh Debian 12 (see scripts/setup), builds what changed,
# and runs. The work is done by scripts/; this file only names it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-integrations bench bench-catalog bench-ps bench-ray bench-s3 bench-slurm bench-tune bench-web bench-peers torture sanitize fresh format lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a training killed twice ends where an undisturbed one ends; a master's is paused, killed and continued
	@scripts/setup build
	@scripts/build release quickstart cairn_cli cairn_shim core_api_checkpoints
	@scripts/web || echo "The web page could not be built (see above): the demo goes on without it."
	@scripts/demo build/release/bin/quickstart
	@scripts/demo_master build/release/bin

test: ## every test: layers, format, fuzz targets 10 s each, unit, integration, crash, e2e
	@scripts/setup build test
	@scripts/test

test-integrations: ## the wheel; trials on Slurm and Ray; the adapters against Lightning, Hugging Face, MLflow and W&B
	@scripts/setup build test
	@scripts/test_integrations

bench: ## measure against baselines in the same run; JSON and a plot (ARGS='...' for bench/run.py)
	@scripts/setup build bench
	@scripts/build release
	@/usr/bin/python3 bench/run.py build/release $(ARGS)
	@$(MAKE) --no-print-directory bench-s3
	@$(MAKE) --no-print-directory bench-ps
	@$(MAKE) --no-print-directory bench-web
	@$(MAKE) --no-print-directory bench-tune
	@$(MAKE) --no-print-directory bench-catalog
	@$(MAKE) --no-print-directory bench-slurm
	@$(MAKE) --no-print-directory bench-ray

bench-catalog: ## the master's record on SQLite and PostgreSQL, beside plain rows, and over HTTP (CATALOG_ARGS, MASTER_ARGS)
	@scripts/setup build test
	@scripts/build release
	@/usr/bin/python3 bench/catalog.py build/release $(CATALOG_ARGS)
	@/usr/bin/python3 bench/master.py build/release $(MASTER_ARGS)

bench-slurm: ## launches on a real Slurm, beside sbatch alone (SLURM_ARGS='...')
	@scripts/setup build test
	@scripts/build release
	@/usr/bin/python3 bench/slurm.py build/release $(SLURM_ARGS)

bench-ray: ## launches on a real Ray, beside jobs of Ray alone (RAY_ARGS='...')
	@scripts/setup build test
	@scripts/venv ray
	@scripts/build release
	@/usr/bin/python3 bench/ray.py build/release $(RAY_ARGS)

bench-tune: ## a tuner's trials, reports, restarts and memory (TUNE_ARGS='...'; --peer beside Ray)
	@scripts/setup build test
	@scripts/build dev
	@case "$(TUNE_ARGS)" in *--peer*) scripts/venv ray;; esac
	@PYTHONPATH=python .venv/test/bin/python bench/tune.py $(TUNE_ARGS)

bench-ps: ## parameter servers on loopback, beside raw sockets and tables in the process (PS_ARGS='...')
	@scripts/setup build
	@scripts/build release
	@/usr/bin/python3 bench/ps.py build/release $(PS_ARGS)

bench-web: ## the web page in a browser: bytes, first rows, panning a long curve (WEB_ARGS='...')
	@scripts/setup build test
	@scripts/web
	@node bench/web.mjs $(WEB_ARGS)

bench-s3: ## put, get, listing and stall on a bucket, beside boto3's transfer manager (S3_ARGS='...')
	@scripts/setup build test
	@scripts/service versitygw
	@scripts/build release
	@scripts/venv test
	@scripts/build dev
	@.venv/test/bin/python bench/s3.py build/release $(S3_ARGS)

bench-peers: ## the same beside torch.save, safetensors, DCP, orbax, paddle, numpy (ARGS='...'); a tuner beside Ray
	@scripts/setup build test
	@scripts/build dev
	@scripts/venv peers
	@.venv/peers/bin/python bench/peers/run.py $(ARGS)
	@$(MAKE) --no-print-directory bench-tune TUNE_ARGS=--peer

torture: ## the long random suites: make torture [SUITE=name] [TIME=30m]; fuzz targets 10 min each
	@scripts/setup build test
	@scripts/build dev
	@scripts/build fuzz
	@scripts/torture $(if $(SUITE),--suite $(SUITE)) $(if $(TIME),--time $(TIME))

sanitize: ## unit, crash and remote suites under the address, undefined-behaviour and thread sanitizers
	@scripts/setup build test
	@scripts/sanitize

fresh: ## make demo (or FRESH='test') in a Debian 12 with git and make and nothing else: does the set-up name all it needs?
	@scripts/fresh $(FRESH)

format: ## format our C++ files in place
	@scripts/setup lint
	@scripts/format

lint: ## layers, format and clang-tidy over src/
	@scripts/setup build test lint
	@scripts/lint

clean: ## remove all build directories
	rm -rf build
