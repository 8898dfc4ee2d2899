"""The known error messages: a row with pattern, cause and remedy for each; pure."""

from __future__ import annotations

import functools
import re

from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.frozen import frozen


@frozen
class KnownError:
    """A known message."""

    pattern: str  # a regular expression that finds it within one line
    cause: str
    remedy: str
    verdict: Verdict = Verdict.CRASHED
    consequence: bool = False  # another rank or process failed before
    shared: bool = False  # a file system failed, so the first rank that prints it is not to blame
    hardware: bool = False  # a GPU, a link or the driver of the node failed, so another node may work
    elsewhere: str = ""  # the remedy in a job that clusterrun did not start; '': the same


# Messages of ranks that only noticed the failure of another one.
CONSEQUENCES = (
    (
        r"Connection (?:closed by (?:remote )?peer|reset by peer)"
        r"|(?:socketProgress|recvBytes).*(?:closed|reset)|NET/OFI Request .*completed with error"
        r"|OFI poll failed|ncclRemoteError|remote process (?:has )?exited",
        "a peer of this rank ended, or the network failed",
    ),
    (r"Broken pipe", "the process that read its output had ended"),
    (
        r"Got completion from peer.*(?:status=|with error )(?:5\b|IBV_WC_WR_FLUSH_ERR)",
        "an RDMA connection had failed before",
    ),
    (
        r"[Ll]ast enqueued (?:\w+ )?work: -?\d+|waiting for future Flight recorder dump"
        r"|dump signal due to a collective timeout from +rank"
        r"|Future for ProcessGroup abort timed out",
        "a collective timed out, here or in another rank",
    ),
    (r"(?:Process group|NCCL) (?:watchdog )?.*terminated with exception", "a collective failed before"),
    (
        r"(?i:failed to (?:recv|send)\b|(?:recv|send)(?:Bytes|Value)\w* failed)"
        r"|DistStoreError|Socket Timeout.*store|may indicate a possible application crash on rank",
        "rank 0, which holds the store, had ended, or cannot be reached",
    ),
    (
        r"Hccl\w+, error code is 6|EI0006|Remote Rank did not send|Error: Socket Timeout$",
        "this rank waited for another one, or for rank 0's store, until a time-out",
    ),
    (
        r"(?i)\b(?:see|inspect|check)\b[^.]{0,60}\bcause\b|due to an exception in a background process"
        r"|failed to unpickle serialized exception|background workers? (?:is|are) (?:6 feet under|no longer)",
        "another process failed before, and this message only refers to its error",
    ),
    (r"RendezvousClosedError", "another node's launcher ended or failed, and closed the rendezvous"),
    (
        r"broadcasted by subset of ranks",
        "ranks that horovod lists as missing did not submit the same tensors",
    ),
    (
        r"NCCL communicator was aborted|successfully reached monitoredBarrier, but"
        r"|caused by an exception on one of the (?:ranks|processes)|Received sigquit from a child"
        r"|\bother ranks\b.{0,20}\b(?:did(?:n't| not)|have not|never)\b"
        r"|(?<!mpirun )detected that one or more processes exited"
        r"|(?:other|emote|peer) (?:rank|process|worker|node|task)s?\b.{0,30}"
        r"\b(?:failed|exited|died|aborted|crashed|terminated)",
        "another rank ended, or did not come",
    ),
)
# A program that starts ranks, and failed because one of them had.
LAUNCHER_FAILED = (
    r"CalledProcessError: Command '(?:\['[^']*|(?:\S*/)?)"
    r"(?:python[\d.]*(?:\.exe)?|torchrun|mpirun|mpiexec|srun|horovodrun|accelerate)(?:['\s]|$)"
    # ssh ends with 255 if it fails itself.
    r"|CalledProcessError: Command '(?:\S*/)?(?:ssh|pdsh) .* exit status (?!255)"
    r"|RuntimeError: '(?:accelerate|torchrun|python)\S* .*' failed with returncode \d"
)
# Remedy for a limit that the shell sets (``ulimit``).
LIMIT_REMEDY = (
    "Slurm copies the limits of the shell that submits: raise it there, or add --sbatch propagate=NONE"
)
# gloo ends a rank that was sent more bytes than it expected: bytes sent, and bytes expected.
SIZES = re.compile(r"op\.nbytes\. (\d+) vs (\d+)")
PEERS_REMEDY = "look at the rank that failed first; this one only noticed"

GPU_MEMORY = KnownError(
    r"(?:CUDA|HIP) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP) [Ee]rror: out of memory"
    r"|(?:Cuda|HIP) failure:? (?:2 )?'out of memory'|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|allocat|reserve)",
    "a GPU ran out of memory",
    "a smaller batch or activation checkpointing; nvidia-smi shows what else holds memory there",
    Verdict.OUT_OF_MEMORY,
)

# NCCL does not say why, unless NCCL_DEBUG is set.
PART_ENDED = KnownError(
    r"^_?queue\.Empty\b|\bBrokenBarrierError\b|^OSError: handle is closed$",
    "another thread or process of this rank had ended",
    "look at what that thread or process printed: this one only waited for it",
    consequence=True,
)
RENDEZVOUS_LOST = KnownError(
    r"failed to (?:shutdown|send a keep-alive heartbeat to) the rendezvous .*Rendezvous\w+Error",
    "the node that holds the rendezvous store ended before, or the network failed",
    "see the end of the log of that node's launcher: this one only lost the connection",
    consequence=True,
)
NCCL_FAILED = KnownError(
    r"unhandled (?:system|cuda) error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError"
    r"|Error while (?:creating|attaching to) shared memory segment",
    "a call of NCCL failed: a socket, shared memory, a driver or a GPU",
    "--env NCCL_DEBUG=WARN shows which call; clusterrun check tests network, shared memory and GPUs",
)

# The lines around them say why.
WRITE_FAILED = KnownError(
    r"PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos",
    "torch could not write a file: the disk is full, a quota is used up, or the file system failed",
    "df -h and the quota of the folder, on that node (clusterrun exec -- df -h)",
    shared=True,
)
NOT_FINITE = KnownError(
    r"(?:Error|Exception): .*(?i:loss scale already at minimum|minimum loss scale|found nan in"
    r"|unexpected result nan|loss (?:is|became|was) nan)",
    "the loss or its gradients became NaN, or overflow in fp16",
    "bf16 instead of fp16, a lower learning rate, or a look at that batch; if it is always the same GPU, "
    "clusterrun check tests it",
)
NPU_FAILED = KnownError(
    r"HCCL error in|\bexecute failed, reason=\[|\bE[A-Z]\d{4}: .*[Rr]eason: (?!Remote Rank)",
    "a call of an NPU or of its library for collectives (HCCL) failed",
    "lines that begin with E, a letter and four digits give the reason; else see ~/ascend/log on the node",
)

# Rows that do not say why.
VAGUE = (NCCL_FAILED, NPU_FAILED, WRITE_FAILED, NOT_FINITE)

# The first row that matches counts, so special rows come before general ones.
ROWS: tuple[KnownError, ...] = (
    # --- memory ---
    GPU_MEMORY,
    KnownError(
        r"increas(?:e|ing) (?:--mem-fraction-static|`?gpu_memory_utilization)|stored in KV cache",
        "the weights of the model leave too little of the GPU's memory for its KV cache",
        "raise that fraction, shorten the context (max-model-len), or spread the model over more GPUs",
    ),
    KnownError(
        r"(?:ibv_reg_mr|ibv_create_|register memory).*Cannot allocate memory",
        "the limit on locked memory is too low for RDMA (it is slurmd's limit, not the shell's)",
        "administrator: LimitMEMLOCK=infinity in slurmd's unit, PropagateResourceLimitsExcept=MEMLOCK",
    ),
    KnownError(
        r"DefaultCPUAllocator: (?:can't|not enough)|\b_?(?:Array)?MemoryError\b|Cannot allocate memory"
        r"|std::bad_alloc",
        "this process could get no more of the machine's memory",
        "ask for more with --mem, use fewer data-loader workers, or a smaller batch",
        Verdict.OUT_OF_MEMORY,
    ),
    KnownError(
        r"by an unexpected system error|Worker exit type: SYSTEM_ERROR|\b(?:RayActor|ActorDied)Error: ",
        "a worker of Ray was killed or crashed: memory may have run out",
        "dmesg on its node shows OOM kills; the files in /tmp/ray/session_latest/logs there show a crash",
    ),
    KnownError(
        r"(?i:oom[-_ ]kill|out of memory: killed|killed due to the node running low on memory"
        r"|exceeded (?:job )?memory limit)",
        "the kernel, Slurm or Ray ended a process because memory ran out",
        "ask for more with --mem, use fewer data-loader workers, or a smaller batch",
        Verdict.OUT_OF_MEMORY,
    ),
    KnownError(
        r"unable to (?:mmap|allocate shared memory)|DataLoader worker .*Bus error"
        r"|Unexpected bus error encountered in worker"
        r"|^(?=.*No space left).*(?:/dev/shm|nccl-|torch_\d)"
        r"|posix_fallocate failed|failed to extend /dev/shm",
        "shared memory (/dev/shm) is full: batches of data-loader workers and NCCL pass through it",
        "a container needs --shm-size or --ipc=host; else fewer workers, "
        'or torch.multiprocessing.set_sharing_strategy("file_system")',
        Verdict.OUT_OF_MEMORY,
    ),
    KnownError(
        r"Bus error|SIGBUS",
        "a page of memory has nothing behind it: /dev/shm or a disk is full, or a mapped file was cut",
        "df -h /dev/shm on the node; a container needs --shm-size or --ipc=host; else see the files that the "
        "program maps",
    ),
    # --- ranks that do not agree ---
    KnownError(
        r"op\.preamble\.length <= op\.nbytes|collective mismatch|Detected mismatch between collectives"
        r"|Message truncated : received",
        "ranks called the same collective with tensors of different size or type, or in different order",
        "let all ranks call the same collectives with equal shapes: check the last batch and each `if rank`",
        Verdict.MISMATCH,
    ),
    KnownError(
        r"(?:[Ss]hape|size)s? (?:of )?.*(?:mismatch|differ) across (?:ranks|processes)"
        r"|appears not to match (?:sizes|strides|shape) of the same param|inconsistent \d+ params",
        "the ranks' models differ: DDP compares parameters when it is made",
        "build one model, with one version of the code, in every rank; a rank with 0 params sent nothing",
        Verdict.MISMATCH,
    ),
    KnownError(
        r"Mismatched NCCL version detected|Detected mixed local Net device counts",
        "the nodes have different versions of NCCL, or it sees fewer network adapters on one of them",
        "one image or one environment for all nodes; clusterrun check names the odd node (--exclude)",
    ),
    KnownError(
        r"Expected to have finished reduction in the prior iteration",
        "some parameters took no part in the loss, so DDP waits for their gradients",
        "DistributedDataParallel(…, find_unused_parameters=True), or use every parameter in forward",
        Verdict.MISMATCH,
    ),
    KnownError(
        r"Expected to mark a variable ready only once",
        "DDP got a gradient twice in one step, often from checkpointed layers or shared parameters",
        "gradient checkpointing with use_reentrant=False, or DistributedDataParallel(…, static_graph=True)",
    ),
    KnownError(
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        'no more ranks than GPUs; torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the group',
    ),
    # --- GPUs and drivers ---
    KnownError(
        r"(?i:fallen off the bus|Xid.*\b79\b|unable to determine the device handle)",
        "a GPU is gone from this node",
        "clusterrun submit --avoid-bad, and tell the administrator: the node must be rebooted",
        hardware=True,
    ),
    KnownError(
        r"(?i:uncorrectable ECC|unspecified launch failure.*ECC|Xid.*\b(?:48|63|64|94|95)\b)",
        "a GPU's memory is damaged",
        "leave the node out (--exclude) and tell the administrator",
        hardware=True,
    ),
    KnownError(
        r"invalid device ordinal",
        "the script asks for a GPU number that this rank does not see",
        "no more ranks on a node than it has GPUs (--gpus); use LOCAL_RANK, not RANK, as the device",
    ),
    KnownError(
        r"Found no NVIDIA driver|no (?:CUDA|ROCm)-capable device|No (?:CUDA|HIP) GPUs are available"
        r"|cudaErrorNoDevice|hipErrorNoDevice",
        "this rank sees no GPU",
        "ask for them with --gpus N; with --gpus 0 the script must choose the CPU; if other nodes see theirs,"
        " try nvidia-smi there, and leave the node out (--exclude)",
    ),
    KnownError(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "torch or jax was built for a newer driver than this node has",
        "install its wheel for the driver's CUDA version (nvidia-smi shows it), or use other nodes",
    ),
    KnownError(
        r"no kernel image is available for execution|invalid device function|hipErrorNoBinaryForGpu",
        "torch was not built for this model of GPU",
        "install a torch wheel that supports it, or ask for other GPUs with --constraint",
    ),
    KnownError(
        r"doesn't have NCCL built in",
        "the ranks' torch has no NCCL: it is a wheel for CPUs or for another accelerator",
        "install torch for CUDA, or choose the backend of the accelerator (gloo, hccl, xccl)",
    ),
    KnownError(
        r"Torch not compiled with CUDA enabled",
        "the ranks' torch is the one for CPUs",
        "install torch for CUDA in the ranks' Python (--python names it)",
    ),
    KnownError(
        r"(?i:Error 802\b|cudaErrorSystemNotReady|system not yet initialized)",
        "the GPUs' NVSwitch fabric is not ready on this node",
        "administrator: systemctl restart nvidia-fabricmanager there; clusterrun check names the node",
        hardware=True,
    ),
    KnownError(
        r"\bIMEX\b|MNNVL.*(?i:fail|not (?:available|working|supported))|Cuda failure (?:800 )?'operation not",
        "NVLink between nodes (MNNVL) does not work: its service, IMEX, is not running or has another domain",
        "nvidia-imex-ctl -N on a node shows the domain; --env NCCL_MNNVL_ENABLE=0 uses the network instead",
    ),
    KnownError(
        r"forward compatibility was attempted on non supported HW",
        "CUDA's compatibility libraries, often a container's, do not fit this node's GPU or driver",
        "take cuda/compat out of LD_LIBRARY_PATH, or use an image for the driver's CUDA version (nvidia-smi)",
    ),
    KnownError(
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated while the old one is loaded",
        "administrator: drain the node and reboot it",
        hardware=True,
    ),
    KnownError(
        r"(?i:CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable)",
        "another process holds a GPU in exclusive mode, or a process that ended still does",
        "nvidia-smi -q -d COMPUTE,PIDS on the node shows the mode and the processes",
        hardware=True,
    ),
    KnownError(
        r"(?i:CUDA unknown error|cudaErrorUnknown)",
        "CUDA cannot be initialized on this node: often the module nvidia-uvm is not loaded",
        "modprobe nvidia-uvm on the node; nvidia-smi there says whether the driver answers",
        hardware=True,
    ),
    KnownError(
        r"re-initialize CUDA in forked subprocess|CUDA error: initialization error"
        r"|Cuda failure (?:3 )?'initialization error'",
        "CUDA could not be initialized: often a process used it before it was forked",
        'torch.multiprocessing.set_start_method("spawn"), or touch no GPU before the fork',
    ),
    KnownError(
        r"(?i:cudaErrorNvlinkUncorrectable|uncorrectable NVLink error|Failed to bind NVLink SHARP)"
        r"|Out of bounds values : \d+ FAILED",
        "a GPU, an NVLink or an NVSwitch of a node failed, or changes data",
        "clusterrun check names the node: leave it out (--exclude); --env NCCL_NVLS_ENABLE=0 avoids SHARP",
        hardware=True,
    ),
    KnownError(
        r"(?i:not permitted when stream is capturing|cudaErrorStreamCapture)",
        "a CUDA graph was captured while this process did something that a capture forbids",
        'let other threads work during a capture: torch.cuda.graph(…, capture_error_mode="thread_local")',
    ),
    NPU_FAILED,
    KnownError(
        r"NET/OFI (?!Request).*(?i:fail|error|unable|no eligible)",
        "NCCL's plug-in for libfabric (aws-ofi-nccl) does not work here",
        "fi_info -p efa lists the adapters (a container needs /dev/infiniband); the plug-in must fit NCCL",
    ),
    KnownError(
        r"NET/IB ?:.*(?:async fatal event|Got async event.*error)",
        "an InfiniBand or RoCE port, or a connection over it, failed while ranks used it",
        "ibstat and dmesg on that node; clusterrun check finds a port that is down",
        Verdict.LINK,
        hardware=True,
    ),
    KnownError(
        r" Assertion `.*(?:(?i:index|idx|\bind\b|target|label)|\bt >= 0).*failed",
        "an index is outside of its table: a token beyond the vocabulary, or a label beyond the classes",
        "compare the largest token or label with that size; --env CUDA_LAUNCH_BLOCKING=1 shows the true line",
    ),
    KnownError(
        r"^(?:\*\*\* Error in `.*': )?"
        r"(?:(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted (?:size|double)|double free or)"
        r"|\*\*\* stack smashing detected",
        "a native library damaged the memory of its process",
        "run once with --env PYTHONFAULTHANDLER=1 to see the line; does a wheel fit this version of torch?",
    ),
    KnownError(
        r"Illegal instruction|SIGILL",
        "a program or a library was built for a newer CPU than this node has",
        "use other nodes (--constraint, or --exclude for these), or build it for this CPU",
    ),
    KnownError(
        r"CUBLAS_STATUS_NOT_INITIALIZED",
        "cuBLAS could not begin: often the GPU's memory is full, or an error before was not reported",
        "nvidia-smi shows what holds memory there; else --env CUDA_LAUNCH_BLOCKING=1 shows the true line",
    ),
    KnownError(
        r"illegal memory access|device-side assert|CUBLAS_STATUS|CUDNN_STATUS|CUDA error:"
        r"|Memory access fault by GPU node|HW Exception by GPU node|\bhipError|HIP (?:error|failure):",
        "a kernel failed on the GPU; the line that is shown may be a later one",
        "--env CUDA_LAUNCH_BLOCKING=1 (AMD: AMD_SERIALIZE_KERNEL=3) shows the true line, dmesg shows faults",
    ),
    KnownError(
        r"peer access is not supported|failed to open CUDA IPC handle",
        "two GPUs of the node cannot use each other's memory, or their processes are in separate containers",
        "nvidia-smi topo -p2p r on the node lists the pairs; --env NCCL_P2P_DISABLE=1 goes through the host",
    ),
    # --- network ---
    KnownError(
        r"Got completion from peer.*(?:status=|with error )"
        r"(?:4\b|9\b|1[01]\b|IBV_WC_(?:LOC_PROT|REM_\w+)_ERR)",
        "an RDMA adapter may not access the memory of a GPU: GPUDirect RDMA does not work between two nodes",
        "--env NCCL_NET_GDR_LEVEL=LOC goes through the host; see nvidia_peermem, iommu=pt and PCIe ACS there",
        Verdict.LINK,
    ),
    KnownError(
        r"Got completion from peer.*(?:status=|with error )"
        r"(?:1[23]\b|IBV_WC_\w*RETRY_EXC_ERR)|vendor[ _]err[ =]129",
        "an RDMA path does not deliver: wrong GID, a bad cable or port",
        "clusterrun check finds the link; on RoCE try --env NCCL_IB_GID_INDEX=3",
        Verdict.LINK,
        hardware=True,
    ),
    KnownError(
        r"ibv_modify_qp failed|ibv_\w+ failed.*(?:unreachable|No such device)",
        "a route or an adapter of the RDMA network is missing, or two rails cannot reach each other",
        "see ibstat on the node; --env NCCL_IB_GID_INDEX=… chooses another address; --env NCCL_CROSS_NIC=0",
        Verdict.LINK,
    ),
    KnownError(
        r"no socket interface found|neither AF_INET\(2\) nor AF_INET6\(10\)|ifa != nullptr",
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that this node does not have",
        "leave them unset: clusterrun chooses an interface for each node",
        elsewhere="unset them, or name one that every node has (ip -br addr)",
    ),
    KnownError(
        r"We couldn't connect to 'https://huggingface\.co|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|^(?=.*host='huggingface\.co').*(?:Max retries exceeded|timed out)",
        "this node does not reach huggingface.co, and the model or data set is not in its cache",
        "download it on a login node into a shared HF_HOME (hf download), and set --env HF_HUB_OFFLINE=1",
    ),
    KnownError(
        r"GatedRepoError|access a gated repo|Access to model .* is restricted"
        r"|40[13] Client Error.*huggingface\.co",
        "huggingface.co refuses the model or data set: its terms are not accepted, or the token is not set",
        "accept the terms on its page; hf auth login on a login node, or export HF_TOKEN",
    ),
    KnownError(
        r"\b429 Client Error|Too Many Requests|\b50[0-4] Server Error",
        "a server on the internet refuses so many requests, or is down: often all ranks ask it at once",
        "download once on a login node into a folder that all nodes share (HF_HOME, --env HF_HUB_OFFLINE=1), "
        "or let rank 0 alone ask",
    ),
    KnownError(
        r"wandb\.(?:\w+\.)*\w*(?:CommError|UsageError|AuthenticationError)"
        r"|wandb: ERROR .*(?:permission|api_key)",
        "wandb could not begin a run: it has no key, no rights to the project, or no way to its server",
        "wandb login on a login node; --env WANDB_MODE=offline trains without it",
    ),
    KnownError(
        r"Unable to find address for: |Unable to resolve hostname|Name or service not known"
        r"|Temporary failure in name resolution|gaierror",
        "a host name is not known on this node",
        "clusterrun check says which; /etc/hosts or DNS must know all nodes",
    ),
    KnownError(
        r"[Cc]onnect to [(\[]?(?:fe80:|169\.254\."
        r"|172\.(?:17\.0\.|(?:1[89]|2\d|3[01])\.0\.1\b)|192\.168\.122\.)",
        "a rank gave others an address that only its own node knows: of a link, of docker or of libvirt",
        "--env NCCL_SOCKET_IFNAME=… and GLOO_SOCKET_IFNAME=… name the interface of the cluster (ip -br addr)",
    ),
    KnownError(
        r"connectFullMesh failed|/gloo/.*\bconnect \[.*refused"
        r"|socket(?:Start|Poll)Connect: .*(?:failed|exceeded|returned \d)"
        r"|(?:NCCL WARN|Net :|Last error:).*(?:Connect to|Call to \w+ from) \S+ failed"
        r"|socket has failed to connect to any network address",
        "a connection could not be made: a peer has ended, or its address is of a wrong interface",
        "if no other rank failed before: clusterrun check tests the ways; --env GLOO_SOCKET_IFNAME=… or "
        "NCCL_SOCKET_IFNAME=… names the interface",
        consequence=True,
    ),
    KnownError(
        r"DEADLINE_EXCEEDED: Barrier timed out",
        "ranks did not meet: JAX lists the tasks that did not come",
        "start one process for each of num_processes; see the end of the logs of those tasks",
        Verdict.NEVER_ARRIVED,
    ),
    RENDEZVOUS_LOST,
    KnownError(
        r"client socket has timed out|^RuntimeError: Connection timed out"
        r"|timed out after \d+ms while waiting|connect\(\) timed out"
        r"|TCP client failed to connect|Failed to connect to client mesh master|WaitForConnected\("
        r"|Rendezvous(?:Timeout|Connection)Error"
        r"|Timed out after \d+ seconds waiting for clients|in store based barrier on rank"
        r"|/gloo/.*Connect timeout \[",
        "ranks did not meet: a rank did not start or is late, or rank 0 cannot be reached",
        "see which rank printed nothing (clusterrun logs --tail 5); clusterrun check tests the way to rank 0",
        Verdict.NEVER_ARRIVED,
    ),
    KnownError(
        r"^RuntimeError: Permission denied$",
        "a port below 1024 cannot be opened by a user",
        "choose a MASTER_PORT of 1024 or more",
    ),
    KnownError(
        r"EADDRINUSE|[Aa]ddress already in use|on port .* another process is utilizing it",
        "a port is taken by another process of this node",
        "leave MASTER_PORT to clusterrun, which finds a free one; end what was left over there",
        elsewhere="choose another port for each job, such as $((20000 + SLURM_JOB_ID % 20000)); end what was "
        "left over there",
    ),
    KnownError(
        r"rank \d+ of \d+ ranks has already checked in",
        "two processes have the same rank: do two nodes both start at rank 0?",
        "give every node its own --node-rank, or let srun start one launcher on each node",
    ),
    KnownError(
        r"OFI poll failed.*\bUN(?:REACH|DELIVER)ABLE\b",
        "the network did not reach another node: that node, its adapter or a link failed",
        "submit again without that node (--exclude); tell the administrator if it fails again",
        Verdict.LINK,
        consequence=True,
        hardware=True,
    ),
    NCCL_FAILED,
    # --- a collective that did not come back ---
    KnownError(
        r"collective operation timeout|Watchdog caught co|Timeout at (?:\w+ )?work: \d+"
        r"|timeout from this local rank"
        r"|Timed out waiting \d+ms for (?:recv|send) operation|monitoredBarrier.*(?:timed out|did not)"
        r"|failed to pass monitoredBarrier|watchdog got stuck for \d+ ?seconds|Heartbeat monitor timed out"
        r"|due to ProcessGroupNCCL watchdog hang",
        "a collective did not end in time: a rank did not join it, or a link is down",
        "clusterrun diagnose while it hangs names the rank; --hang-after does so automatically",
        Verdict.NEVER_ARRIVED,
        elsewhere="clusterrun diagnose JOB while it hangs names the rank",
    ),
    # --- files and programs ---
    KnownError(
        r"task \d+ launch failed",
        "slurmd could not start the tasks",
        "slurmd's log on the node says why; another --mpi (srun --mpi=list) tests whether PMIx is the cause",
    ),
    KnownError(
        r"[Nn]o space left on device|Errno 28|ENOSPC",
        "a disk is full",
        "free some space; df -h on the node shows which disk (clusterrun exec -- df -h)",
        shared=True,
    ),
    KnownError(
        r"File too large|Errno 27\b",
        "a file reached the limit on its size (ulimit -f)",
        LIMIT_REMEDY,
        shared=True,
    ),
    KnownError(
        r"Disk quota exceeded|Errno 122",
        "a quota is used up",
        "remove files, or write elsewhere ($SCRATCH)",
        shared=True,
    ),
    KnownError(
        r"Stale file handle|Errno 116|(?<!what\(\):  )Transport endpoint is not connected|Errno 107",
        "a network file system lost its server, or the file was replaced behind its back",
        "try the path on that node (clusterrun exec -- ls …); tell the administrator",
        shared=True,
    ),
    KnownError(
        # UCX and OFI speak of the connection to another rank.
        r"^(?!.*\b(?:UCX|OFI)\b).*(?:Input/output error|Errno 5\])",
        "a disk or a network file system does not deliver",
        "try the path on that node (clusterrun exec -- ls …); leave the node out with --exclude",
        shared=True,
    ),
    KnownError(
        r"Read-only file system|Errno 30\]",
        "a file system may only be read on this node",
        "write elsewhere, or mount it for writing; if it could be written before, its disk or server failed",
        shared=True,
    ),
    WRITE_FAILED,
    KnownError(
        r"size mismatch for .*copying a param|Missing key in checkpoint state_dict",
        "the checkpoint does not fit the model",
        "build the model with the sizes of the checkpoint (vocabulary, classes, width), or load another one",
    ),
    KnownError(
        r"failed finding central directory|PytorchStreamReader failed|SafetensorError"
        r"|model_proto->ParseFromArray|UnpicklingError: (?:invalid load key|pickle data was truncated)"
        r"|cannot identify image file|[Ii]mage file is truncated|EOFError: Ran out of input"
        r"|\b(?:BadZipFile|BadGzipFile|ReadError|LZMAError|ZstdError|InvalidDataError)\b|^zlib\.error: "
        r"|\w(?:Error|Exception|Invalid)\b.*(?i:\bcorrupt(?:ed)?\b|truncated (?:file|header)|unexpected EOF"
        r"|mmap length is greater|unexpected end of (?:data|file|stream)|end-of-stream marker|magic bytes"
        r"|signature not found|parse ModelProto|format not recogni[sz]ed)",
        "a file is cut, damaged, empty or of another format, or is a pointer of Git LFS",
        "compare its size with that of its source; load an older checkpoint, download it again, or leave a "
        "damaged sample out",
    ),
    KnownError(
        r"\bjson\.decoder\.JSONDecodeError: |JSON parse error: |Error tokenizing data\.",
        "a file or text that was read is no valid JSON or CSV: it is empty or cut, or has a wrong line",
        "the message says in which line and column; python -m json.tool FILE (--json-lines) checks a file",
    ),
    KnownError(
        r"Weights only load failed|WeightsUnpickler error",
        "torch.load reads only weights since torch 2.6, and the file holds other objects",
        "torch.load(…, weights_only=False) if you trust the file, or torch.serialization.add_safe_globals",
    ),
    KnownError(
        r"(?:unrecognized arguments|not used by the HfArgumentParser).*--local[-_]rank",
        "the launcher passes --local-rank (--local_rank before torch 2.0), and the script does not take it",
        "start it with torchrun and read LOCAL_RANK, or let the script take both: "
        'add_argument("--local-rank", "--local_rank", type=int)',
    ),
    KnownError(
        r"(?:^|: )error: (?:unrecognized arguments|the following arguments are required|argument -)",
        "the command has an option that the script does not take, or lacks one",
        "correct the options of the command; --help of the script lists them",
    ),
    KnownError(
        r"Too many open files|Errno 24|received 0 items of ancdata|unable to open shared memory object",
        "the limit on open files is reached, often by data-loader workers",
        'ulimit -n in --setup, fewer workers, or torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    KnownError(
        r"NoCredentialsError|Unable to locate credentials|DefaultCredentialsError|\bExpiredToken\b"
        r"|\bInvalidAccessKeyId\b",
        "the process has no valid credentials for the cloud's storage",
        "give them to every rank: export AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
        "(GOOGLE_APPLICATION_CREDENTIALS), or a HOME with ~/.aws that all nodes share",
    ),
    KnownError(
        r"unable to lock file",
        "HDF5 could not lock the file: the file system forbids it, or another process writes the file",
        "--env HDF5_USE_FILE_LOCKING=FALSE if no process writes it",
    ),
    KnownError(
        r"Resource temporarily unavailable|can't start new thread|fork: retry",
        "the limit on processes and threads is reached",
        "ulimit -u on the node; fewer data-loader workers, a smaller OMP_NUM_THREADS",
    ),
    KnownError(
        r"most likely due to a circular import",
        "two modules import each other, or a file has the name of a package",
        "move one of the imports into the function that needs it, or rename the file",
    ),
    KnownError(
        r"KeyError: '(?:(?:[A-Z]+_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|OMPI_COMM_WORLD_\w+)'",
        "the script reads a variable that torchrun or mpirun sets, and its launcher does not",
        "clusterrun submit sets it, as torchrun does; below srun: export RANK=$SLURM_PROCID "
        "LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS",
    ),
    KnownError(
        r"ModuleNotFoundError|ImportError: cannot import name",
        "a package is missing in the ranks' Python, or is another version",
        "install it there (clusterrun status names that Python), name another with --python, or bring it "
        "with --setup 'module load …'; one of your own folders: --env PYTHONPATH=$PWD, or start it with -m",
        elsewhere="install it in the Python that the batch script starts, or load its environment there "
        "(module load …, conda activate …); one of your own folders: export PYTHONPATH=$PWD, or -m",
    ),
    KnownError(
        r"GLIBC(?:XX)?_[\d.]+' not found|version `GLIBC",
        "a library was built for a newer system than this node has",
        "use a wheel or container for the node's system, or nodes like the one it was built on",
    ),
    KnownError(
        r"cannot open shared object file",
        "a shared library is missing",
        "load what it needs in --setup ('module load cuda'), or set LD_LIBRARY_PATH with --env",
    ),
    KnownError(
        r"undefined symbol|numpy\.dtype size changed|module that was compiled using NumPy 1",
        "a native extension or library was built for another version of torch or of a library",
        "install a wheel that fits this torch, CUDA and Python, or build it again; LD_LIBRARY_PATH may put "
        "another library first",
    ),
    KnownError(
        r"returned error code: 40[13]\b|unauthorized: authentication required|pull access denied",
        "the registry refuses the image: this user is not logged in, or may not use it",
        "log in on the nodes (enroot: ~/.config/enroot/.credentials, apptainer registry login), or start a "
        "local image file",
    ),
    KnownError(
        r"mount source \S+ doesn't exist",
        "a path that is mounted into the container is missing on that node",
        "ls that path on the node (clusterrun exec -- ls …); its file system may not be mounted there: leave "
        "the node out (--exclude)",
    ),
    KnownError(
        r"\bcannot find -lcuda\b",
        "the linker does not find libcuda.so, which the driver brings, so a kernel cannot be compiled",
        "set LIBRARY_PATH and TRITON_LIBCUDA_PATH to its folder (ldconfig -p | grep libcuda), or to "
        "lib64/stubs of the CUDA toolkit",
    ),
    KnownError(
        r"fatal error: \S+\.h(?:pp)?: No such file|Error building extension '|Failed to find C compiler"
        r"|\bnvcc fatal\b",
        "a native extension could not be compiled: the compiler's message comes first",
        "load a compiler and the CUDA toolkit of torch's version (module load), or install a wheel of it",
    ),
    KnownError(
        r"MPI could not be initialized",
        "MPI found no PMI of its launcher, or could not reach the other ranks",
        "srun --mpi=list shows what Slurm offers: try srun --mpi=pmix, or start the ranks with mpirun",
    ),
    KnownError(
        r"\*\*\* MPI_ERR_\w+",
        "a call of MPI failed, so MPI ended the ranks",
        "see the call in the line above, and the ranks that take part in it",
    ),
    KnownError(
        r"\b(?:SyntaxError|IndentationError|TabError): |unsupported operand type\(s\) for \|: 'type' and",
        "the script is no valid Python for the ranks' interpreter",
        "correct that line; --python names another interpreter",
    ),
    KnownError(
        r"\\r['\":]|\^M: bad interpreter",
        "the script has DOS line ends, and the shell takes the first half of each for a part of a name",
        "dos2unix SCRIPT, or sed -i 's/\\r$//' SCRIPT",
    ),
    KnownError(
        r"/slurmd?/[^' ]*job\d+/.*(?:No such file|Errno 2\])",
        "the batch script looks beside itself, and Slurm runs a copy of it from another folder",
        "use $SLURM_SUBMIT_DIR or the full path instead of $0, dirname and BASH_SOURCE",
    ),
    KnownError(
        r"couldn't chdir to ",
        "the working directory of the job is missing on that node, so its commands ran in another one",
        "submit from a folder that all nodes share (ls it on the node: clusterrun exec -- ls …)",
    ),
    KnownError(
        r"FileNotFoundError|Errno 2\]",
        "a file is not there, as this node sees it",
        "is it on a file system that all nodes share? relative paths start where submit was called, or "
        "--setup goes; with --snapshot in the copy, which lacks what git ignores: --snapshot-include PATH",
    ),
    KnownError(
        r"PermissionError|Errno 13\]",
        "a file may not be touched by this user",
        "ls -l on the node (clusterrun exec -- ls -l …)",
    ),
    KnownError(
        r"DataLoader (?:worker|process) \(pid.*is killed by signal: Killed",
        "a worker of the data-loader was killed by signal 9",
        "memory may have run out: dmesg on the node shows OOM kills; then fewer workers, or more with --mem",
    ),
    KnownError(
        r"DataLoader worker \(pid.*is killed by signal: (?:Segmentation|Abort|Floating)",
        "native code crashed in a worker of the data-loader, often a decoder of images, audio or video",
        "num_workers=0 with --env PYTHONFAULTHANDLER=1 shows the line; does that library fit this torch?",
    ),
    KnownError(
        r"EOFError: EOF when reading a line|\bBdbQuit\b",
        "the script reads from a keyboard (input(), breakpoint()), and ranks have none",
        "take it out; clusterrun exec --rank N -- py-spy dump --pid $CLUSTERRUN_RANK_PID looks into a rank",
    ),
    # --- the training itself ---
    NOT_FINITE,
    KnownError(
        r"Attempting to unscale FP16 gradients",
        "the weights that are trained are in fp16 themselves, and a GradScaler needs them in float32",
        "load them in float32 below autocast, or train in bf16",
    ),
    KnownError(
        r"train_batch_size is not equal to micro_batch|global batch size .*divisible by micro batch size",
        "the batch sizes do not fit the number of ranks",
        "the global batch must be micro batch x accumulation steps x data-parallel ranks (DeepSpeed computes "
        "one that is not set), or start as many ranks as the sizes are for",
    ),
    KnownError(
        r"stack expects each tensor to be equal size|you should probably activate truncation",
        "the samples of a batch have different shapes",
        "texts: padding=True and truncation=True in the tokenizer; else a collate_fn that pads, or crops and "
        "converts images to one mode",
    ),
    # --- training alone ---
    KnownError(
        r"Unable to locate sufficient \d+ gpus|(?:not enough|insufficient|[Rr]equires at least \d+) GPUs?"
        r"|[Nn]eeds? (?:at least )?\d+ GPUs?,? (?:but )?(?:found|got|have|has|only|saw)",
        "the script left because it saw too few GPUs",
        "ask for more with --gpus N, or make the script run with what it has",
        Verdict.ALONE,
    ),
    KnownError(
        r"Unable to create step.*(?:More processors requested|Requested node configuration"
        r"|Invalid generic resource|Memory required by task)",
        "a step of srun asks for more tasks, CPUs, GPUs or memory than its job has",
        "compare --ntasks, --cpus-per-task, --gres and --mem of srun with the #SBATCH lines; "
        "scontrol show job JOB",
    ),
    # --- processes of this rank's own ---
    KnownError(
        r"ChildFailedError|SignalException: Process \d+ got signal"
        rf"|{LAUNCHER_FAILED}",
        "a process started here failed before",
        "look at what that process printed: this one only noticed",
        consequence=True,
    ),
    PART_ENDED,
    KnownError(
        r"DataLoader worker \(pid.*(?:exited unexpectedly|is killed by signal: Terminated)",
        "a worker of the data-loader ended before",
        "does the dataset, or a library of it, leave the process (sys.exit, os._exit) or crash there? "
        "with num_workers=0 the rank itself does, and says where",
        consequence=True,
    ),
    # --- a key of the store that nobody sets; gloo waits for some of its own ---
    KnownError(
        r"wait timeout after \d+ms, keys: (?!\S*(?://c(?:pu|uda)/|store_based_barrier))",
        "no rank set a key of the store in time",
        "which rank sets that key, under which condition? clusterrun logs --tail 5 shows how far each came",
    ),
    *(KnownError(pattern, cause, PEERS_REMEDY, consequence=True) for pattern, cause in CONSEQUENCES),
)


@functools.cache
def _patterns() -> tuple[tuple[KnownError, re.Pattern[str]], ...]:
    return tuple((row, re.compile(row.pattern)) for row in ROWS)


@functools.lru_cache(maxsize=256)
def meaning(line: str) -> KnownError | None:
    """Return the first row that matches ``line``; None if there is none.

    NCCL and HIP report what they try as information: a plugin that is not installed is no error.
    """
    if ("NCCL INFO" in line and "\n" not in line) or line.startswith(":3:hip_"):
        return None
    # One pattern for all rows takes longer than one after the other.
    return next((row for row, pattern in _patterns() if pattern.search(line)), None)
