"""SGLang servers: those that Heddle starts, and those that run already."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heddle.agent.ports import EngineCapabilities
from heddle.allocation import Fixed, SlotRule
from heddle.config import EngineConfig, HeddleConfig, SGLangConfig
from heddle.coordinator.assembly import EngineKit
from heddle.engines.embedded.launcher import usable_cores
from heddle.engines.sglang.command import (
    DEFAULT_ARGUMENTS,
    DeviceKind,
    GroupOptions,
    LaunchPlan,
    ServerTemplate,
    plan_pool,
)
from heddle.engines.sglang.devices import parse_devices
from heddle.engines.sglang.inventory import memory_in_use, read_inventory
from heddle.errors import ConfigError
from heddle.prefix_stores import open_store, sglang_state_dir, store_flags
from heddle.text.tokenizer import TextTokenizer, load_tokenizer

AUTO = "auto"

TRANSFER_TOKENS_PER_S = 10_000.0
"""Until transfers have shown it, a guess: 1.5 GB/s through host memory for a model of 8B; no GPU has measured
it."""


async def launched_kit(config: HeddleConfig) -> EngineKit:
    """Servers of our own on this machine's devices."""
    # Imported late: a command that only reads the configuration should not load an HTTP client.
    from heddle.engines.sglang.adapter import SGLangSettings
    from heddle.engines.sglang.launcher import LaunchRules, SGLangLauncher
    from heddle.engines.sglang.leases import Leases

    engine, sglang = config.engine, config.engine.sglang
    template = server_template(config)
    order = await asyncio.to_thread(device_order, sglang)
    if template.device is DeviceKind.CUDA:
        launch_plans(config, order)  # a pool that does not fit is an error now, not a worker that waits
    tokenizer = await asyncio.to_thread(_tokenizer, engine, template.model)
    launcher = SGLangLauncher(
        template,
        Leases(order, sglang.base_port, shared=template.device is DeviceKind.CPU),
        LaunchRules(engine.ready_within_s, sglang.start_at_once, sglang.free_share),
        memory_in_use=memory_in_use if template.device is DeviceKind.CUDA else None,
        engine_settings=SGLangSettings(
            native_priority=sglang.native_share is not None, end_ids=tuple(sorted(tokenizer.end_ids))
        ),
    )
    planned = _planned_capabilities(template)
    return EngineKit(
        launcher,
        tokenizer,
        planned,
        _model_id(template.model),
        budget=len(order),
        exclusive=template.device is DeviceKind.CUDA,
        weights_path=template.model,
        transfer_tokens_per_s=TRANSFER_TOKENS_PER_S if planned.kv_transfer else None,
        memory=await asyncio.to_thread(open_store, config),
    )


async def attached_kit(engine: EngineConfig) -> EngineKit:
    """Servers that run already; they are the pool."""
    from heddle.engines.sglang.adapter import SGLangSettings
    from heddle.engines.sglang.attach import AttachLauncher, find_servers

    sglang = engine.sglang
    api_key = sglang.api_key.get_secret_value() if sglang.api_key else None
    servers = await find_servers(sglang.workers, api_key=api_key)
    models = sorted({server.facts.model_path or "" for server in servers})
    if len(models) > 1:
        raise ConfigError(f"engine.sglang.workers serve different models: {', '.join(models)}")
    model = engine.model if "model" in engine.model_fields_set else models[0]
    tokenizer = await asyncio.to_thread(_tokenizer, engine, model)
    launcher = AttachLauncher(
        servers,
        context_tokens=engine.context_tokens,
        ready_timeout_s=engine.ready_within_s,
        engine_settings=SGLangSettings(
            native_priority=sglang.native_share is not None,
            end_ids=tuple(sorted(tokenizer.end_ids)),
            api_key=api_key,
        ),
        native_share=sglang.native_share,
    )
    capabilities = servers[0].facts.capabilities
    return EngineKit(
        launcher,
        tokenizer,
        replace(capabilities, json_schema=all(found.facts.capabilities.json_schema for found in servers)),
        _model_id(model),
        budget=sum(found.facts.tp_size for found in servers),
        exclusive=True,
        weights_path=models[0],
        transfer_tokens_per_s=TRANSFER_TOKENS_PER_S if capabilities.kv_transfer else None,
        pool="+".join(str(found.facts.tp_size) for found in servers),
    )


def server_template(config: HeddleConfig) -> ServerTemplate:
    """What the configured servers have in common. Raises ``ConfigError``."""
    engine, sglang = config.engine, config.engine.sglang
    if "model" not in engine.model_fields_set:
        raise ConfigError("engine.model: name the directory of a Hugging Face model for SGLang")
    path, store = Path(engine.model), store_flags(config)
    defaults = DEFAULT_ARGUMENTS if sglang.default_args is None else sglang.default_args
    return ServerTemplate(
        model=str(path.resolve()) if path.is_dir() else engine.model,
        context_tokens=engine.context_tokens,
        state_dir=sglang_state_dir(config),
        command=sglang.command,
        device=DeviceKind(sglang.device),
        default_args=(*defaults, *store.arguments),
        extra_args=sglang.extra_args,
        environment={**sglang.environment, **store.environment},
        groups={
            degree: GroupOptions(group.extra_args, group.environment)
            for degree, group in sglang.groups.items()
        },
        native_share=sglang.native_share,
    )


def device_order(sglang: SGLangConfig, *, look: bool = True) -> tuple[int, ...]:
    """The devices to use, neighbours side by side.

    Asks the driver, unless ``look`` is false and they are named. Raises ``ConfigError`` where there are none.
    """
    if sglang.device == "cpu":
        return tuple(range(usable_cores())) if sglang.gpus == AUTO else parse_devices(sglang.gpus)
    named = None if sglang.gpus == AUTO else parse_devices(sglang.gpus)
    if named is not None and not look:
        return named
    inventory = read_inventory()
    return (inventory if named is None else inventory.select(named)).order


def launch_plans(config: HeddleConfig, order: Sequence[int]) -> tuple[LaunchPlan, ...]:
    """Every launch of the configured pool on these devices. Raises ``ConfigError`` where it does not fit.

    A planning allocator, too, starts with that pool, before it has seen any lengths.
    """
    engine = config.engine
    specs = Fixed(engine.pool, SlotRule(engine.slots, engine.slots_per_gpu)).allocate(len(order))
    return plan_pool(specs, order, engine.sglang.base_port, server_template(config))


def tokenizer_directory(engine: EngineConfig, model: str) -> Path:
    """Where the tokenizer of a Hugging Face model lies. Raises ``ConfigError`` where there is none."""
    directory = engine.tokenizer or Path(model)
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError(
            f"no tokenizer.json in {str(directory)!r}: give engine.model the directory of a model, "
            "or engine.tokenizer one with its tokenizer"
        )
    return directory


def _tokenizer(engine: EngineConfig, model: str) -> TextTokenizer:
    return load_tokenizer(tokenizer_directory(engine, model))


def _planned_capabilities(template: ServerTemplate) -> EngineCapabilities:
    """What servers of this template will be able to do; they are asked again when they run."""
    from heddle.engines.sglang.facts import ServerFacts

    arguments = {*template.default_args, *template.extra_args}
    for group in template.groups.values():
        arguments |= {*group.extra_args}
    return ServerFacts(
        grammar_backend="xgrammar",
        skip_tokenizer_init="--skip-tokenizer-init" in arguments,
        enable_priority_scheduling="--enable-priority-scheduling" in arguments,
        disable_priority_preemption="--disable-priority-preemption" in arguments,
        enable_session_radix_cache="--enable-session-radix-cache" in arguments,
        enable_hierarchical_cache="--enable-hierarchical-cache" in arguments,
        hicache_storage_backend="planned" if "--hicache-storage-backend" in arguments else None,
    ).capabilities


def _model_id(model: str) -> str:
    """A model by name and size; enough to tell one from another in the same data directory."""
    path = Path(model)
    if not path.is_dir():
        return model
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return f"{path.name}:{size}"
