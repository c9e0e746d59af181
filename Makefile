# Everything sets itself up: each target makes the virtual environment it needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
# Engines that are tested where they can be installed.
ENGINES = openvino tensorrt-rtx

.PHONY: demo test test-slow check format bench-speed bench-growth bench-train bench-latency bench-gpu bench-scorers coverage fuzz clean

# Train a small ResNet on real images dense, uniform and cropped; export and time each.
demo: $(INSTALLED)
	$(BIN)/precrop train recipes/configs/digits.yaml

test: $(INSTALLED)
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: $(INSTALLED)
	$(BIN)/pytest -n 2 -m slow

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	rm -rf build/typed
	$(BIN)/python setup.py -q build --build-lib build/typed
	cd build/typed && $(abspath $(BIN))/mypy --config-file $(abspath pyproject.toml) -p precrop

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The README's table of cropping speed, beside Torch-Pruning.
bench-speed: $(INSTALLED)
	$(BIN)/pip install -q torch-pruning==1.6.1
	$(BIN)/python benchmarks/crop_speed.py

# How the time of a trace grows with the number of layers.
bench-growth: $(INSTALLED)
	$(BIN)/python benchmarks/trace_growth.py

# Step time and memory of training, dense and cropped.
bench-train: $(INSTALLED)
	$(BIN)/python benchmarks/train_speed.py --batch 16 --image 112 --rounds 7

# docs/LATENCY.md and the README's table of what a crop saves in an engine. Twenty minutes on a quiet machine.
bench-latency: $(INSTALLED)
	$(BIN)/pip install -q -e ".[onnx,openvino]" torch-pruning==1.6.1
	$(BIN)/python benchmarks/latency.py --targets none onnxruntime openvino --peer-round-to 0 16 --write docs/LATENCY.md

# Training steps and latency of crops on an NVIDIA GPU, with checks against the CPU. Eight minutes.
bench-gpu: $(INSTALLED)
	$(BIN)/python benchmarks/gpu_check.py

# docs/SCORERS.md: densities, time and memory of every scorer. Long.
bench-scorers: $(INSTALLED)
	$(BIN)/python benchmarks/scorers.py --write docs/SCORERS.md

# docs/COVERAGE.md: every network of torchvision and timm, cropped and checked. Long; continues where it was stopped.
coverage: $(INSTALLED)
	$(BIN)/python benchmarks/coverage.py --jobs 2
	$(BIN)/python benchmarks/coverage.py --summary

# A thousand random networks, cropped to random budgets and compared with the same built by hand; one in ten is exported.
# FUZZ=200 makes it fewer; `PYTHONPATH=tests/support .venv/bin/python -m fuzz --seed N --shrink` looks at one.
FUZZ ?= 1000
FUZZ_START ?= 0
fuzz: $(INSTALLED)
	PYTHONPATH=tests/support $(BIN)/python -m fuzz --count $(FUZZ) --start $(FUZZ_START) --onnx 0.1

$(INSTALLED): setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip setuptools wheel
	$(BIN)/pip install -e ".[dev]"
	@for extra in $(ENGINES); do $(BIN)/pip install -q -e ".[$$extra]" \
		|| echo "precrop[$$extra] cannot be installed here: its tests are skipped"; done
	@$(BIN)/pip install -q --no-deps "tensorrt-cu13-bindings>=11" \
		|| echo "TensorRT's bindings cannot be installed here: the test of their interface is skipped"
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
