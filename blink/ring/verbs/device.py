"""An RDMA device through pyverbs: opening it, its port and GID, memory regions, queue pairs."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from blink.errors import BlinkError
from blink.ring.handshake import Endpoint
from blink.ring.verbs.binding import verbs
from blink.ring.verbs.fabric import FabricError, Limits, Op, Rights
from blink.ring.verbs.settings import RdmaSettings

RETRY_COUNT = 6  # 7 means for ever on some devices
ACK_TIMEOUT = 16  # 4.096 us * 2**16 = 0.27 s, so that a dead path is known after some two seconds
MIN_RNR_TIMER = 12
HOP_LIMIT = 64
MAX_READS = 16  # in flight per queue pair: enough to fill a link with 64-KiB reads, and every device has as many
POLL_BATCH = 32
ROCE = {"roce_v1": "RoCE v1", "roce_v2": "RoCE v2"}
T = TypeVar("T")


def _call(what: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    try:
        return function(*args, **kwargs)
    except verbs().error.PyverbsError as e:
        code = getattr(e, "error_code", 0)
        raise FabricError(f"{what}: {os.strerror(code) if code else e}") from None


class Device:
    """The device and port that ``[rdma]`` names. Raises BlinkError saying which of device, port or GID is unfit."""

    def __init__(self, config: RdmaSettings) -> None:
        self.name = _device_name(config.device)
        v = verbs()
        try:
            self._context = _call(f"opening {self.name}", v.device.Context, name=self.name)
        except FabricError as e:
            raise BlinkError(
                f"rdma.device: {e}", "see that /dev/infiniband is there and this user may use it"
            ) from None
        try:
            self.port = config.port
            self.gid_index, self.limits = self._examine(config)
        except FabricError as e:
            self.close()
            raise BlinkError(f"rdma.device {self.name}: {e}", "see `rdma link` and `ibv_devinfo`") from None
        except BlinkError:
            self.close()
            raise

    def _examine(self, config: RdmaSettings) -> tuple[int, Limits]:
        v, where = verbs(), f"port {config.port} of {self.name}"
        port = _call(f"asking {where}", self._context.query_port, config.port)
        if port.link_layer != v.IBV_LINK_LAYER_ETHERNET:
            raise BlinkError(f"rdma.port: {where} is not Ethernet", "set the port to Ethernet: Blink speaks RoCE")
        if port.state != v.IBV_PORT_ACTIVE:
            raise BlinkError(f"rdma.port: {where} is not active", "bring its network interface up; check the cable")
        device = _call(f"asking {self.name}", self._context.query_device)
        index, gid = self._find_gid(config, port.gid_tbl_len, where)
        # The attributes are bytes on the wire; a device may promise more, or 0 for what it does not say.
        limits = Limits(
            gid=gid,
            mtu=128 << port.active_mtu,
            initiator=max(1, min(device.max_qp_init_rd_atom, MAX_READS)),
            responder=max(1, min(device.max_qp_rd_atom, MAX_READS)),
            max_work=device.max_qp_wr,
        )
        return index, limits

    def _find_gid(self, config: RdmaSettings, size: int, where: str) -> tuple[int, bytes]:
        v, seen = verbs(), []
        kinds = {"roce_v1": v.IBV_GID_TYPE_SYSFS_IB_ROCE_V1, "roce_v2": v.IBV_GID_TYPE_SYSFS_ROCE_V2}
        wanted = config.gid_address
        for index in range(size):
            try:
                address = ipaddress.IPv6Address(self._context.query_gid(config.port, index).gid)
                if not int(address) or self._context.query_gid_type(config.port, index) != kinds[config.gid_type]:
                    continue
            except v.error.PyverbsError:  # an empty entry of the table
                continue
            plain = address.ipv4_mapped or address
            seen.append(str(plain))
            # Without a wish, an entry made of an address of the interface: those are routed.
            if plain == wanted or (wanted is None and not address.is_link_local):
                return index, address.packed
        raise BlinkError(
            f"rdma.gid_address: {where} has no {ROCE[config.gid_type]} GID {wanted or 'of an IP address'} "
            f"(it has {', '.join(seen) or 'none'})",
            "give its network interface that address, or name one that it has",
        )

    def domain(self) -> VerbsDomain:
        """A new protection domain."""
        return VerbsDomain(self, _call("a protection domain", verbs().pd.PD, self._context))

    @property
    def address(self) -> str:
        """The GID in use, as an address."""
        gid = ipaddress.IPv6Address(self.limits.gid)
        return str(gid.ipv4_mapped or gid)

    @property
    def context(self) -> Any:
        """The pyverbs context."""
        return self._context

    def close(self) -> None:
        """Close the device. Idempotent."""
        self._context.close()


def devices() -> list[str]:
    """Names of this machine's RDMA devices. Raises BlinkError without pyverbs."""
    try:
        return [d.name.decode() if isinstance(d.name, bytes) else d.name for d in verbs().device.get_device_list()]
    except verbs().error.PyverbsError:  # a kernel without RDMA
        return []


def _device_name(wanted: str | None) -> str:
    names = devices()
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return str(wanted)
    if not names:
        raise BlinkError(
            "rdma.device: this machine has no RDMA device",
            "load the card's driver, or `rdma link add rxe0 type rxe netdev NIC` for software RDMA",
        )
    raise BlinkError(f"rdma.device: {wanted or 'not set'}, and this machine has {', '.join(names)}", "name one of them")


def _access(rights: Rights, local: int = 0) -> int:
    v = verbs()
    access = local
    if Rights.READ in rights:
        access |= v.IBV_ACCESS_REMOTE_READ
    if Rights.WRITE in rights:
        access |= v.IBV_ACCESS_REMOTE_WRITE | v.IBV_ACCESS_LOCAL_WRITE  # one implies the other in the specification
    return int(access)


class VerbsDomain:
    """A protection domain."""

    def __init__(self, device: Device, pd: Any) -> None:
        self.device, self._pd = device, pd

    def register(self, address: int, length: int, rights: Rights) -> VerbsMemory:
        """Register mapped memory; without remote rights, for reads to land in."""
        access = _access(rights, 0 if rights else verbs().IBV_ACCESS_LOCAL_WRITE)
        mr = _call(f"registering {length} bytes", verbs().mr.MR, self._pd, length, access, address=address)
        return VerbsMemory(mr, address)

    def register_dmabuf(self, fd: int, offset: int, length: int, rights: Rights) -> VerbsMemory:
        """Register memory behind a dma-buf descriptor. Raises FabricError where device or exporter cannot."""
        what = f"registering a dma-buf with {self.device.name}"
        mr = _call(what, verbs().mr.DmaBufMR, self._pd, length, _access(rights), dmabuf=fd, offset=offset)
        return VerbsMemory(mr, offset)  # its addresses count from the start of the buffer

    def queue_pair(self, depth: int, rights: Rights) -> VerbsQueuePair:
        """An unconnected queue pair."""
        return VerbsQueuePair(self.device, self._pd, depth, rights)

    def close(self) -> None:
        """Give it back. Idempotent."""
        self._pd.close()


class VerbsMemory:
    """A registered memory region."""

    def __init__(self, mr: Any, address: int) -> None:
        self._mr, self.address, self.lkey, self.rkey = mr, address, int(mr.lkey), int(mr.rkey)

    def close(self) -> None:
        """Deregister it. Idempotent."""
        self._mr.close()


class VerbsQueuePair:
    """A reliable connected queue pair; operations go through the extended posting calls, which allocate nothing."""

    def __init__(self, device: Device, pd: Any, depth: int, rights: Rights) -> None:
        v = verbs()
        self._device, self._rights = device, rights
        self.psn = secrets.randbits(24)
        with ExitStack() as undo:
            self._cq = _call("a completion queue", v.cq.CQ, device.context, depth + 1)
            undo.callback(self._cq.close)
            init = v.qp.QPInitAttrEx(
                qp_type=v.IBV_QPT_RC, scq=self._cq, rcq=self._cq, pd=pd,
                cap=v.qp.QPCap(max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1),
                comp_mask=v.IBV_QP_INIT_ATTR_PD | v.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags=v.IBV_QP_EX_WITH_RDMA_WRITE | v.IBV_QP_EX_WITH_RDMA_READ,
            )  # fmt: skip
            self._qp = _call("a queue pair", v.qp.QPEx, device.context, init)
            undo.pop_all()
        self._sge: Any = v.wr.SGE(0, 0, 0)
        self.number = int(self._qp.qp_num)

    def connect(self, local: Endpoint, remote: Endpoint, index: int, *, initiates: bool) -> None:
        """Connect to queue pair ``index`` of ``remote``."""
        v = verbs()
        number, psn = remote.qps[index]
        route = v.addr.GlobalRoute(
            dgid=v.addr.GID(remote.gid.hex(":", 2)),  # pyverbs takes no short form
            sgid_index=self._device.gid_index,
            hop_limit=HOP_LIMIT,
        )
        attr = v.qp.QPAttr(port_num=self._device.port)
        attr.qp_access_flags = _access(self._rights)
        attr.ah_attr = v.addr.AHAttr(gr=route, is_global=1, port_num=self._device.port)
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = number, psn, self.psn
        attr.path_mtu = (min(local.mtu, remote.mtu) // 256).bit_length()
        attr.max_rd_atomic = min(local.initiator, remote.responder)
        attr.max_dest_rd_atomic = min(local.responder, remote.initiator)
        attr.min_rnr_timer, attr.rnr_retry = MIN_RNR_TIMER, RETRY_COUNT
        attr.timeout, attr.retry_cnt = ACK_TIMEOUT, RETRY_COUNT
        where = f"connecting a queue pair to {remote.address}"
        _call(where, self._qp.to_rts if initiates else self._qp.to_rtr, attr)

    def post(self, ops: Sequence[Op], lkey: int, *, read: bool) -> None:
        """Post ``ops`` as one list."""
        v, qp, sge = verbs(), self._qp, self._sge
        start = qp.wr_rdma_read if read else qp.wr_rdma_write
        sge.lkey = lkey
        qp.wr_start()
        try:
            for op in ops:
                qp.wr_id = op.wr_id
                qp.wr_flags = v.IBV_SEND_SIGNALED if op.signaled else 0
                start(op.rkey, op.remote)
                sge.addr, sge.length = op.local, op.length
                qp.wr_set_sge(sge)
        except BaseException:
            qp.wr_abort()
            raise
        _call("posting", qp.wr_complete)

    def poll(self) -> list[tuple[int, int]]:
        """(wr_id, status) of what ended."""
        count, entries = _call("polling", self._cq.poll, POLL_BATCH)
        return [(int(e.wr_id), int(e.status)) for e in entries] if count else []

    def close(self) -> None:
        """Destroy it. Idempotent."""
        self._qp.close()
        self._cq.close()
        if self._sge is not None:
            self._sge.close()  # twice would free it twice
            self._sge = None
