"""The configuration of one appliance: a TOML file that the playbooks write and every process reads.

A process uses the sections of its half and ignores none: an unknown key is an error, so that a typing mistake is
found where it was made.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from blink import limits
from blink.errors import BlinkError
from blink.registry import DRIVERS, ENGINES
from blink.ring.layout import EXTENT_ALIGN, Geometry

MIB = 1 << 20
Buckets = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=limits.BUCKETS)]


def one_of(table: Mapping[str, object]) -> Callable[[object], str]:
    """A validator that accepts the names in ``table``, as they are when it is called."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in table:
            *first, last = map(repr, table)
            raise PydanticCustomError(
                "literal_error", "Input should be {names}", {"names": f"{', '.join(first)} or {last}"}
            )
        return value

    return check


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InstanceConfig(_Section):
    """``[instance]``: where this appliance keeps what lives as long as it runs."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")] = "local"
    run_dir: Path = Field(description="locks and control sockets; removed by `make down`")
    ring_dir: Path = Field(description="the ring's shared-memory objects; a tmpfs such as /dev/shm/blink-NAME")


class RingConfig(_Section):
    """``[ring]``: geometry, see :class:`blink.ring.layout.Geometry`; arenas are per partition.

    Worker w of the frontend has partition w. The last partition is the operator's: `blink smoke` and `blink status`
    use it while every worker holds its own.
    """

    transport: Literal["shm", "verbs"] = "shm"
    slots: int = 4096
    partitions: Annotated[int, Field(ge=2)] = 2
    input_mib: Annotated[int, Field(ge=1, le=2047)] = 16
    output_mib: Annotated[int, Field(ge=1, le=2047)] = 16

    @model_validator(mode="after")
    def _lay_out(self) -> RingConfig:
        self.geometry()
        return self

    def geometry(self) -> Geometry:
        """The ring's geometry."""
        assert MIB % EXTENT_ALIGN == 0
        return Geometry(self.slots, self.partitions, self.input_mib * MIB, self.output_mib * MIB)


class RdmaConfig(_Section):
    """``[rdma]``: the device of this machine, and blink-ringd, which joins the two machines; for transport verbs."""

    device: str | None = Field(default=None, description="such as mlx5_0; may be left out where there is one")
    port: Annotated[int, Field(ge=1, le=255)] = 1
    gid_type: Literal["roce_v1", "roce_v2"] = "roce_v2"
    gid_address: IPv4Address | IPv6Address | None = Field(
        default=None, description="of this machine's interface; may be left out where it has one"
    )
    ringd_address: IPv4Address | IPv6Address = Field(
        description="where blink-ringd listens and frontends find it: one address of the host's RDMA interface"
    )
    ringd_port: Annotated[int, Field(ge=1, le=65535)] = 18515
    key_file: Path = Field(description="64 hex digits, the same on both machines, mode 0600")
    next_key_file: Path | None = Field(default=None, description="blink-ringd takes this key as well, if it is there")
    handshake_timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    backend_user: str | None = Field(
        default=None, description="user of the backend, where it is another than blink-ringd's"
    )

    @model_validator(mode="after")
    def _one_address(self) -> RdmaConfig:
        if self.ringd_address.is_unspecified or self.ringd_address.is_multicast:
            raise ValueError(f"ringd_address: {self.ringd_address} is not one address of an interface")
        return self


class ModelConfig(_Section):
    """``[model]``: a prepared model folder (`blink model prepare`)."""

    path: Path
    served_name: str
    aliases: tuple[str, ...] = Field(default=(), description="further names that requests may give")
    chat_template: Path | None = Field(default=None, description="replaces the checkpoint's chat template")


class EngineConfig(_Section):
    """``[engine]``: what runs the model, and the shapes it runs."""

    kind: Annotated[str, BeforeValidator(one_of(ENGINES))] = Field(
        default="reference", description="synthetic answers with hashes, on a GPU: to measure all but the model"
    )
    lanes: Annotated[int, Field(ge=1, le=limits.LANES)] = 8
    queue: Annotated[int, Field(ge=1, le=8192)] = Field(default=16, description="requests that may wait for a lane")
    page_tokens: Annotated[int, Field(ge=1, le=limits.PAGE_TOKENS)] = 16
    pages: Annotated[int, Field(ge=2)] = 512
    max_context: Annotated[int, Field(ge=2, le=limits.CONTEXT)] = 4096
    batch_tokens: Annotated[int, Field(ge=1, le=limits.BATCH_TOKENS)] = Field(
        default=256, description="packed tokens of the largest prefill step"
    )
    threads: Annotated[int, Field(ge=1)] | None = Field(default=None, description="CPU threads of the reference engine")
    device: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^GPU-[0-9a-f-]+$")] = Field(
        default=0, description="GPU, by index or by UUID as `nvidia-smi -L` prints it"
    )
    driver: Annotated[str, BeforeValidator(one_of(DRIVERS))] = Field(
        default="conditional", description="what keeps a GPU going; host: a CPU thread, for comparison (docs/gpu.md)"
    )
    dtype: Literal["auto", "float16", "bfloat16"] = Field(
        default="auto", description="of weights and KV cache on a GPU; auto is the checkpoint's own"
    )
    exact: bool = Field(
        default=False, description="native: batch-mates change no bit of an answer; slower where few rows run"
    )
    decode_buckets: Buckets = Field(default=(), description="row counts to capture; ascending, the last is lanes")
    prefill_buckets: Buckets = Field(
        default=(), description="packed token counts to capture; ascending, the last is batch_tokens"
    )
    random_seed: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="native: random weights of this seed, whatever the model folder has; to measure"
    )
    cache_dir: Path | None = Field(
        default=None, description="of compiled kernels and the graphs' manifest; default $XDG_CACHE_HOME/blink"
    )
    drain_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=20.0,
        description="what still runs this long after SIGTERM ends with an error; below a supervisor's own limit",
    )

    @model_validator(mode="after")
    def _fits(self) -> EngineConfig:
        if self.pages * self.page_tokens < self.max_context:
            raise ValueError(
                f"pages: {self.pages} pages of {self.page_tokens} tokens hold less than max_context={self.max_context}"
            )
        if self.batch_tokens < self.lanes:
            raise ValueError(f"batch_tokens: {self.batch_tokens} is below lanes={self.lanes}")
        for name, last in (("decode_buckets", self.lanes), ("prefill_buckets", self.batch_tokens)):
            sizes = getattr(self, name)
            if sizes and (sizes[-1] != last or list(sizes) != sorted(set(sizes))):
                raise ValueError(f"{name}: not ascending up to {last}")
        return self

    @property
    def on_gpu(self) -> bool:
        """Whether the engine runs on a GPU."""
        return ENGINES[self.kind].on_gpu


class FrontendConfig(_Section):
    """``[frontend]``: the HTTP half."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    workers: Annotated[int, Field(ge=1, le=limits.PARTITIONS)] = 1
    api_keys_file: Path | None = Field(default=None, description="one key per line; required when host is not loopback")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    link_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="a stream fails after a cut this long"
    )
    drain_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=20.0, description="an answer still running this long after SIGTERM ends with an error"
    )

    @model_validator(mode="after")
    def _guarded(self) -> FrontendConfig:
        loopback = self.host in ("127.0.0.1", "::1", "localhost")
        if not loopback and (self.api_keys_file is None or self.tls_cert is None or self.tls_key is None):
            raise ValueError(f"host: {self.host} is not loopback, so api_keys_file, tls_cert and tls_key are required")
        return self


class ApplianceConfig(_Section):
    """The whole file."""

    instance: InstanceConfig
    ring: RingConfig = RingConfig()
    rdma: RdmaConfig | None = None
    model: ModelConfig
    engine: EngineConfig = EngineConfig()
    frontend: FrontendConfig = FrontendConfig()

    @model_validator(mode="after")
    def _partitions(self) -> ApplianceConfig:
        if self.frontend.workers >= self.ring.partitions:
            raise ValueError(
                f"ring.partitions: {self.frontend.workers} frontend.workers and the operator need "
                f"{self.frontend.workers + 1} partitions, not {self.ring.partitions}"
            )
        return self

    @model_validator(mode="after")
    def _linked(self) -> ApplianceConfig:
        if self.ring.transport == "verbs" and self.rdma is None:
            raise ValueError("rdma: ring.transport verbs needs this section")
        return self

    @property
    def operator_partition(self) -> int:
        """The partition that no worker has: the last."""
        return self.ring.partitions - 1


def load_config(path: Path) -> ApplianceConfig:
    """Read and validate ``path``. Raises BlinkError naming the file and the first wrong field."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError as e:
        raise BlinkError(f"{path}: {e.strerror}", "name a configuration written by site.yml with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BlinkError(f"{path} is not TOML ({e})", "correct the file, or run site.yml again") from None
    try:
        return ApplianceConfig.model_validate(data)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "file"
        raise BlinkError(f"{path}: {where}: {first['msg']}", "correct that field") from None
