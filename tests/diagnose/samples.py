"""Pieces of logs in the forms of several releases and launchers, with what happened in them.

Each is: name, kind, rank to blame, `file:line` to blame, a piece of a line that must be quoted as the root (None for
any), the log.
"""

# ruff: noqa: E501, E101

TRACE = 'Traceback (most recent call last):\n  File "/home/u/train.py", line {line}, in main\n    {code}\n'

SAMPLES = [
    (
        "OOM on one rank, the peers time out",
        "cuda-oom",
        2,
        "train.py:40",
        "CUDA out of memory",
        """[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/u/train.py", line 40, in main
[rank2]:     loss.backward()
[rank2]:   File "/opt/conda/lib/python3.10/site-packages/torch/_tensor.py", line 522, in backward
[rank2]:     torch.autograd.backward(
[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.15 GiB
[rank0]:[E1204 10:11:12.000000001 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=100, NumelOut=100, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.
[rank1]:[E1204 10:11:12.000000001 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=100, NumelOut=100, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.
""",
    ),
    (
        "OOM printed after the others' timeouts",
        "cuda-oom",
        3,
        "train.py:41",
        "OutOfMemoryError",
        """[rank0]:[E204 10:11:12.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.
[rank0]:[E204 10:11:13.1 ProcessGroupNCCL.cpp:621] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/u/train.py", line 41, in main
[rank3]:     out = net(x)
[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 23.69 GiB total capacity)
""",
    ),
    (
        "all ranks load onto one GPU",
        "oom-rank0-load",
        None,
        "train.py:12",
        "CUDA out of memory",
        """Traceback (most recent call last):
  File "/home/u/train.py", line 12, in resume
    state = torch.load(path)
  File "/opt/conda/lib/python3.9/site-packages/torch/serialization.py", line 712, in load
    return _load(opened_zipfile, map_location, pickle_module, **pickle_load_args)
RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 31.75 GiB total capacity; 30.1 GiB already allocated)
""",
    ),
    (
        "torch 1.x unused parameters without prefixes",
        "ddp-unused-params",
        None,
        "train.py:5",
        "finished reduction in the prior iteration",
        TRACE.format(line=5, code="out = model(x)")
        + "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error "
        "indicates that your module has parameters that were not used in producing loss.\n",
    ),
    (
        "Lightning's words for it",
        "ddp-unused-params",
        None,
        None,
        "LightningModule has parameters",
        "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss returned "
        "by training_step. If this is intentional, you must enable the detection of unused parameters in DDP, either by "
        "setting the string value `strategy='ddp_find_unused_parameters_true'`\n",
    ),
    (
        "the OOM killer",
        "host-oom",
        3,
        None,
        "oom-kill",
        """slurmstepd: error: Detected 1 oom-kill event(s) in StepId=123.0. Some of your processes may have been killed by the cgroup out-of-memory handler.
srun: error: node01: task 3: Out Of Memory
srun: Terminating job step 123.0
""",
    ),
    (
        "killed without a word under torchrun 1.x",
        "exit-sigkill",
        1,
        None,
        "exitcode: -9",
        """WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 100 closing signal SIGTERM
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 101) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
train.py FAILED
------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-05-01_10:00:00
  host      : node
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 101)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 101
======================================================
""",
    ),
    (
        "mp.spawn, killed",
        "exit-sigkill",
        2,
        None,
        "SIGKILL",
        TRACE.format(line=80, code="mp.spawn(run, nprocs=4)")
        + '  File "/opt/conda/lib/python3.9/site-packages/torch/multiprocessing/spawn.py", line 140, in join\n'
        "    raise ProcessExitedException(\n"
        "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL\n",
    ),
    (
        "mp.spawn, an exception of one process",
        "python-exception",
        1,
        "train.py:33",
        "ZeroDivisionError",
        """Traceback (most recent call last):
  File "/home/u/train.py", line 80, in <module>
    mp.spawn(run, nprocs=4)
  File "/opt/conda/lib/python3.9/site-packages/torch/multiprocessing/spawn.py", line 163, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/opt/conda/lib/python3.9/site-packages/torch/multiprocessing/spawn.py", line 74, in _wrap
    fn(i, *args)
  File "/home/u/train.py", line 33, in run
    x = 1 / 0
ZeroDivisionError: division by zero
""",
    ),
    (
        "record: the traceback in torchrun's block",
        "python-exception",
        3,
        "train.py:9",
        "IndexError",
        """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2024-05-01_10:00:00
  host      : node
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 99)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 99
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2024-05-01_10:00:00
  host      : node
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 100)
  error_file: /tmp/torchelastic_x/none_y/attempt_0/3/error.json
  traceback : Traceback (most recent call last):
    File "/opt/conda/lib/python3.10/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 346, in wrapper
      return f(*args, **kwargs)
    File "/home/u/train.py", line 9, in main
      x = items[4]
  IndexError: list index out of range

============================================================
""",
    ),
    (
        "NCCL 1.x timeout: one of four did not come",
        "nccl-timeout",
        2,
        None,
        None,
        "".join(
            f"[E ProcessGroupNCCL.cpp:587] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
            "Timeout(ms)=1800000) ran for 1800116 milliseconds before timing out.\n"
            for rank in (0, 1, 3)
        )
        + 3
        * (
            "[E ProcessGroupNCCL.cpp:341] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
            "kernels, subsequent GPU operations might run on corrupted/incomplete data. To avoid this inconsistency, we are taking "
            "the entire process down.\n"
        ),
    ),
    (
        "the desync report names the rank",
        "nccl-timeout",
        1,
        None,
        None,
        """[rank0]:[E1204 10:11:12.1 ProcessGroupNCCL.cpp:630] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=10000) ran for 10010 milliseconds before timing out.
[rank0]:[E1204 10:11:12.2 ProcessGroupNCCL.cpp:1680]
	 - [0] Timeout at collective: ALLREDUCE, #3
	 - To our best knowledge, ranks [1] are the lagging ranks that caused this timeout. They never joined any collectives
""",
    ),
    (
        "a broken GPU",
        "hardware-ecc",
        5,
        "train.py:7",
        "uncorrectable ECC",
        """[rank5]: Traceback (most recent call last):
[rank5]:   File "/home/u/train.py", line 7, in step
[rank5]:     torch.cuda.synchronize()
[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered
[rank4]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5
[rank4]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
""",
    ),
    (
        "only a victim speaks",
        "nccl-remote-error",
        None,
        None,
        "closed by remote peer",
        """torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
NET/Socket : socket 0x7f connection closed by remote peer
""",
    ),
    (
        "what NCCL's proxy thread says of a peer that has gone",
        "nccl-remote-error",
        None,
        None,
        "retcode 6",
        """node7:712:730 [1] proxy.cc:1119 NCCL WARN [Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 6
node7:712:729 [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer node8<41234>
node7:712:729 [1] NCCL INFO proxy.cc:881 -> 6
node7:712:729 [1] proxy.cc:884 NCCL WARN Proxy Call to rank 1 failed (Connect)
node7:712:712 [1] NCCL INFO group.cc:421 -> 3
""",
    ),
    (
        "NCCL's proxy thread for a reason of its own",
        "nccl-system-error",
        None,
        None,
        "retcode 1",
        """node7:712:730 [1] proxy.cc:1519 NCCL WARN [Proxy Service 1] Failed to execute operation Setup from rank 1, retcode 1
node7:712:729 [1] proxy.cc:884 NCCL WARN Proxy Call to rank 1 failed (Setup)
""",
    ),
    (
        "InfiniBand",
        "nccl-ib",
        None,
        None,
        "NET/IB",
        """node7:312:500 [3] transport/net_ib.cc:1234 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4242> with error 12, opcode 0, len 0, vendor err 129
RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:47, unhandled system error, NCCL version 2.10.3
ncclSystemError: System call (socket, malloc, munmap, etc) failed.
""",
    ),
    (
        "/dev/shm too small for NCCL",
        "nccl-system-error",
        None,
        None,
        "shared memory segment",
        """host:1:20 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1 (size 9637888)
RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8
""",
    ),
    (
        "workers without shared memory",
        "dataloader-shm",
        None,
        "train.py:61",
        "insufficient shared memory",
        """ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
Traceback (most recent call last):
  File "/home/u/train.py", line 61, in main
    for batch in loader:
  File "/opt/conda/lib/python3.8/site-packages/torch/utils/data/dataloader.py", line 1011, in _try_get_data
    raise RuntimeError('DataLoader worker (pid(s) {}) exited unexpectedly'.format(pids_str)) from e
RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.
""",
    ),
    (
        "the launcher's environment, as a KeyError",
        "env-missing",
        None,
        "train.py:3",
        "LOCAL_RANK",
        TRACE.format(line=3, code="local_rank = int(os.environ['LOCAL_RANK'])")
        + '  File "/usr/lib/python3.8/os.py", line 675, in __getitem__\n    raise KeyError(key) from None\n'
        "KeyError: 'LOCAL_RANK'\n",
    ),
    (
        "too few GPUs",
        "invalid-device",
        None,
        "train.py:4",
        "invalid device ordinal",
        TRACE.format(line=4, code="torch.cuda.set_device(local_rank)")
        + '  File "/opt/conda/lib/python3.9/site-packages/torch/cuda/__init__.py", line 350, in set_device\n'
        "    torch._C._cuda_setDevice(device)\n"
        "RuntimeError: CUDA error: invalid device ordinal\n"
        "CUDA kernel errors might be asynchronously reported at some other API call,so the stacktrace below might be incorrect.\n",
    ),
    (
        "a rich traceback of accelerate",
        "python-exception",
        None,
        "train.py:88",
        "ValueError",
        """╭─────────────────────────────── Traceback (most recent call last) ────────────────────────────────╮
│ /home/u/proj/train.py:120 in <module>                                                              │
│                                                                                                    │
│   117                                                                                              │
│ ❱ 120     main()                                                                                   │
│ /home/u/proj/train.py:88 in main                                                                   │
│                                                                                                    │
│ ❱  88     raise ValueError("no data")                                                              │
╰────────────────────────────────────────────────────────────────────────────────────────────────────╯
ValueError: no data
""",
    ),
    (
        "a checkpoint of DDP in a plain model",
        "ckpt-prefix",
        None,
        None,
        "module.",
        'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "fc.weight", "fc.bias". \n'
        '\tUnexpected key(s) in state_dict: "module.fc.weight", "module.fc.bias". \n',
    ),
    (
        "recompilation",
        "recompile-limit",
        None,
        "model.py:21",
        "recompile_limit",
        """W0412 10:00:00.000000 4242 torch/_dynamo/convert_frame.py:964] [0/8] torch._dynamo hit config.recompile_limit (8)
W0412 10:00:00.000000 4242 torch/_dynamo/convert_frame.py:964] [0/8]    function: 'forward' (/home/u/model.py:21)
W0412 10:00:00.000000 4242 torch/_dynamo/convert_frame.py:964] [0/8]    last reason: 0/7: x.size()[1] == 96
step 100 loss 2.1
""",
    ),
    (
        "capture",
        "cudagraph-capture",
        None,
        "serve.py:30",
        "stream is capturing",
        'Traceback (most recent call last):\n  File "/home/u/serve.py", line 30, in capture\n    y = net(x).sum().item()\n'
        "RuntimeError: CUDA error: operation not permitted when stream is capturing\n",
    ),
    (
        "Triton on an H100",
        "triton-resources",
        None,
        "train.py:4",
        "OutOfResources",
        TRACE.format(line=4, code="kernel[grid](x)")
        + '  File "/opt/conda/lib/python3.10/site-packages/triton/compiler/compiler.py", line 255, in _init_handles\n'
        '    raise OutOfResources(self.shared, max_shared, "shared memory")\n'
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 294912, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.\n",
    ),
    (
        "a cache that two ranks write",
        "triton-cache-race",
        None,
        None,
        ".triton/cache",
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.triton/cache/ab12/kernel.cubin.tmp.pid_42_17'\n",
    ),
    (
        "loss is NaN, in the form of many training scripts",
        "nan-loss",
        None,
        None,
        "Loss is nan",
        "Epoch: [3]  [ 120/5004]  lr: 0.000100  loss: nan (nan)\nLoss is nan, stopping training\n",
    ),
    (
        "an NCCL group in which somebody is missing from the start",
        "store-timeout",
        0,
        None,
        "ncclUniqueId",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
        "key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0\n",
    ),
    (
        "clients that did not join",
        "store-timeout",
        None,
        "train.py:6",
        "clients joined",
        TRACE.format(line=6, code='dist.init_process_group("nccl")')
        + '  File "/opt/conda/lib/python3.10/site-packages/torch/distributed/rendezvous.py", line 189, in _create_c10d_store\n'
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n",
    ),
    (
        "srun -l",
        "python-exception",
        1,
        "train.py:9",
        "KeyError",
        """0: step 1
1: step 1
2: step 1
1: Traceback (most recent call last):
1:   File "/home/u/train.py", line 9, in main
1:     x = table[key]
1: KeyError: 'a'
0: step 2
2: step 2
2: step 3
""",
    ),
    (
        "Ray",
        "python-exception",
        None,
        "train.py:11",
        "TypeError",
        """(RayTrainWorker pid=4242, ip=10.0.0.1) Traceback (most recent call last):
(RayTrainWorker pid=4242, ip=10.0.0.1)   File "/home/u/train.py", line 11, in train_func
(RayTrainWorker pid=4242, ip=10.0.0.1)     len(3)
(RayTrainWorker pid=4242, ip=10.0.0.1) TypeError: object of type 'int' has no len()
ray.exceptions.RayTaskError(TypeError): ray::_RayTrainWorker__execute.get_next() (pid=4242, ip=10.0.0.1)
  File "/home/u/train.py", line 11, in train_func
    len(3)
TypeError: object of type 'int' has no len()
""",
    ),
    (
        "mpirun's prefixes",
        "python-exception",
        2,
        "train.py:11",
        "TypeError",
        """[1,2]<stderr>:Traceback (most recent call last):
[1,2]<stderr>:  File "/home/u/train.py", line 11, in main
[1,2]<stderr>:    len(3)
[1,2]<stderr>:TypeError: object of type 'int' has no len()
[1,0]<stdout>:step 3
""",
    ),
    (
        "torn lines of two ranks",
        "python-exception",
        1,
        "train.py:11",
        "TypeError",
        """[rank1]: Traceback (most recent call last):[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 12, in main[rank1]:   File "/home/u/train.py", line 11, in main
[rank1]:     len(3)[rank0]:     dist.barrier()
[rank1]: TypeError: object of type 'int' has no len()[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:1
""",
    ),
    (
        "a rank that returned early, and was still shutting down when torchrun stopped it",
        "early-exit-zero",
        1,
        "train.py:63",
        "Connection closed by peer",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 63, in main
[rank0]:     dist.all_reduce(torch.ones(2))
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:20910.
W1122 20:47:35.016000 19888 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 19900 closing signal SIGTERM
E1122 20:47:35.094000 19888 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 19899) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_20:47:35
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 19900)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 19900
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_20:47:35
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 19899)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    ),
    (
        "a rank that returned early, was sent torchrun's signal and had ended by itself before it counted",
        "early-exit-zero",
        1,
        "train.py:63",
        "Connection reset by peer",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 63, in main
[rank0]:     dist.all_reduce(torch.ones(2))
[rank0]: RuntimeError: [pair.cc:537] Read error [127.0.0.1]:413: Connection reset by peer.
W1122 20:47:35.016000 19888 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 19900 closing signal SIGTERM
E1122 20:47:35.094000 19888 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 19899) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_20:47:35
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 19899)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    ),
    (
        "a traceback that a forum has printed: other quotation marks, no indentation",
        "python-exception",
        1,
        "train.py:37",
        "RuntimeError: The size of tensor a",
        """[rank1]: Traceback (most recent call last):
[rank1]: File “/data/train.py”, line 43, in
[rank1]: main()
[rank1]: File “/data/train.py”, line 37, in main
[rank1]: accelerator.backward(loss)
[rank1]: File “/opt/conda/lib/python3.12/site-packages/accelerate/accelerator.py”, line 2196, in backward
[rank1]: loss.backward(**kwargs)
[rank1]: RuntimeError: The size of tensor a (23) must match the size of tensor b (3) at non-singleton dimension 1
""",
    ),
    (
        "a checkout of a library below the user's call",
        "python-exception",
        None,
        "trainer.py:532",
        "Error(s) in loading state_dict",
        """Traceback (most recent call last):
  File "/root/workspace/trainer.py", line 532, in load_checkpoint
    self.model.load_state_dict(state["model"], strict=True)
  File "/root/workspace/fairscale/fairscale/nn/misc/flatten_params_wrapper.py", line 484, in load_state_dict
    return super().load_state_dict(state_dict, strict)
  File "/opt/conda/lib/python3.8/site-packages/torch/nn/modules/module.py", line 1656, in load_state_dict
    raise RuntimeError('Error(s) in loading state_dict for {}:\\n\\t{}'.format(
RuntimeError: Error(s) in loading state_dict for FlattenParamsWrapper:
\tsize mismatch for flat_param_0: copying a param with shape torch.Size([10]) from checkpoint, the shape in current model is torch.Size([20]).
""",
    ),
    (
        "mpirun, in two lines",
        "exit-sigabrt",
        7,
        None,
        "signal 6",
        """--------------------------------------------------------------------------
prterun noticed that process rank 7 with PID 0 on node gpu0304 exited on
signal 6 (Aborted).
--------------------------------------------------------------------------
""",
    ),
    (
        "an exception that quotes another one",
        "python-exception",
        None,
        "train.py:20",
        "Cannot find a working triton installation",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 20, in main
[rank0]:     model(x)
[rank0]: torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:
[rank0]: RuntimeError: Cannot find a working triton installation.
""",
    ),
    (
        "DeepSpeed's launcher: the command that it shows is the one that it started last",
        "exit-sigkill",
        None,
        None,
        "return code = -9",
        """[2023-04-13 18:08:55,469] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 1
[2023-04-13 18:08:55,479] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 2
[2023-04-13 18:09:33,220] [ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', '-u', 'run.py', '--local_rank=3'] exits with return code = -9
""",
    ),
    (
        "DeepSpeed's launcher with one process",
        "exit-sigsegv",
        0,
        None,
        "return code = -11",
        "[2023-04-13 18:09:33,220] [ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', '-u', 'run.py', '--local_rank=0'] exits with return code = -11\n",
    ),
    (
        "the launcher's words glued together, with what follows cut off",
        "exit-sigkill",
        4,
        None,
        "exitcode: -9",
        """Loading checkpoint shards:   0%|     | 0/2 [00:00<?, ?it/s]WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 505 closing signal SIGTERM
   ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 509) of binary: /opt/bin/python      Traceback (most recent call last):    File "/opt/bin/torchrun", line 33, in <module>  sys.exit(load_entry_point('t
""",
    ),
    (
        "cut off in the name of the launcher's exception",
        "exit-sigkill",
        0,
        None,
        "exitcode: -9",
        """torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -9) local_rank: 0 (pid: 1322) of binary: /opt/bin/python
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/lib/python3.10/site-packages/torch/distributed/launcher/api.py", line 263, in launch_agent
    raise ChildFailedError(
torch.distr
""",
    ),
    (
        "cut off after the raise",
        "rendezvous-connection",
        None,
        None,
        "raise RendezvousConnectionError(",
        """  File "/opt/lib/python3.10/site-packages/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 119, in _call_store
    raise RendezvousConnectionError(
""",
    ),
    (
        "cut off in a worker's traceback",
        "python-exception",
        1,
        "data.py:12",
        "Caught FileNotFoundError",
        """[rank0]: Epoch 1
[rank1]: FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 2.
[rank1]: Original Traceback (most recent call last):
[rank1]:   File "/opt/lib/python3.12/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
[rank1]:     data = fetcher.fetch(index)
[rank1]:   File "/home/user/proj/data.py", line 12, in __getitem__
[rank1]:     return Image.open(self.paths[i])
""",
    ),
    (
        "cut off in torchrun's block: all ranks aborted",
        "exit-sigabrt",
        None,
        None,
        "exitcode  : -6 (pid: 22)",
        """Failures:
[1]:
  time      : 2023-06-14_22:36:10
  rank      : 1 (local_rank: 1)
  exitcode  : -6 (pid: 23)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 23
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-06-14_22:36:10
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 22)
  error_file: <N/A>
  tr
""",
    ),
    (
        "of a message about two collectives only the first is left",
        "collective-mismatch",
        None,
        None,
        "Rank 1 is running collective",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=21, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long, TensorDev\n",
    ),
    (
        "NCCL's own check of collectives",
        "collective-mismatch",
        None,
        None,
        "Mismatched collective",
        "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39.\n",
    ),
    (
        "only the second line of a message",
        "ddp-ready-twice",
        None,
        "train.py:66",
        "marked as ready twice",
        """Parameter at index 55 has been marked as ready twice. This means that multiple autograd engine  hooks have fired for this particular parameter.
Traceback (most recent call last):
  File "/home/user/proj/train.py", line 66, in main
    trainer.train()
""",
    ),
    (
        "the launcher was asked to stop",
        "job-cancelled",
        None,
        None,
        "Received 15 death signal",
        """WARNING: torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers
WARNING: torch.distributed.elastic.multiprocessing.api:Sending process 165 closing signal SIGTERM
""",
    ),
    (
        "what a shell says of a command of its script",
        "exit-sigabrt",
        None,
        None,
        "line 184: 2324239 Aborted",
        """/home/user/proj/pretrain.sh: line 184: 2324239 Aborted                 (core dumped) litgpt pretrain $model
/home/user/proj/pretrain.sh: line 184: 2324238 Aborted                 (core dumped) litgpt pretrain $model
""",
    ),
    (
        "an assertion that says whose gradients are not finite",
        "nan-loss",
        11,
        None,
        "Rank 11: found NaN",
        "AssertionError: Rank 11: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 3\n",
    ),
    (
        "Megatron's own check of results",
        "nan-loss",
        3,
        None,
        "nan on rank 3",
        "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2 (message='found NaN in local grad norm for bucket #0 in backward pass')\n",
    ),
    (
        "a connection that is refused after the scheduler has ended the job",
        "job-cancelled",
        None,
        None,
        "CANCELLED AT",
        """slurmstepd: error: *** STEP 608.0 ON node1 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***
slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused
srun: error: node1: tasks 2-3: Exited with exit code 1
""",
    ),
    (
        "a connection that was refused before the scheduler ended the job",
        "rendezvous-connection",
        None,
        None,
        "Connection refused",
        """[W socket.cpp:601] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 111 - Connection refused).
slurmstepd: error: *** STEP 608.0 ON node2 CANCELLED AT 2022-08-12T02:06:12 DUE TO TIME LIMIT ***
""",
    ),
    (
        "a port that is taken, torch 1.x",
        "port-in-use",
        None,
        None,
        "Address already in use",
        "RuntimeError: Address already in use\n",
    ),
    (
        "the rendezvous is not to be reached",
        "rendezvous-connection",
        None,
        None,
        "client socket has timed out",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).\n",
    ),
    (
        "two processes on a GPU, NCCL 2.18",
        "duplicate-gpu",
        None,
        None,
        "Duplicate GPU detected",
        """torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, invalid usage, NCCL version 2.18.1
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000
""",
    ),
    (
        "two processes that take themselves for one rank",
        "duplicate-rank",
        None,
        None,
        "already checked in",
        """node-a:21312:21312 [0] NCCL INFO Using network IB
node-b:18569:18835 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in
node-a:21312:21313 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>
""",
    ),
    (
        "a group's rank is no global rank",
        "nccl-timeout",
        None,
        None,
        None,
        "[E ProcessGroupNCCL.cpp:563] [PG 7 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=16, Timeout(ms)=600000) ran for 600100 milliseconds before timing out.\n",
    ),
    (
        "FSDP with frozen parameters",
        "fsdp-requires-grad",
        None,
        None,
        "uniform `requires_grad`",
        "ValueError: Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`\n",
    ),
    (
        "a gather of unlike shapes under accelerate",
        "shape-mismatch-gather",
        None,
        None,
        "shape mismatches",
        "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape mismatches. "
        "All shapes across devices must be valid.\n\nOperation: `accelerate.utils.operations.gather`\nInput shapes:\n  - Process 0: [1, 5]\n"
        "  - Process 1: [1, 2, 5]\n",
    ),
    (
        "a hang that somebody interrupted",
        "unknown",
        None,
        None,
        None,
        "step 10\nstep 11\n^C\n",
    ),
    (
        "a healthy run",
        "unknown",
        None,
        None,
        None,
        "epoch 1 loss 0.3\nepoch 2 loss 0.2\nSaved checkpoint to out/last.pt\n",
    ),
    (
        "every rank that the log shows was in the watchdog's list: nobody can be named",
        "nccl-timeout",
        None,
        None,
        "Watchdog caught",
        """[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466, NumelOut=466, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.
[rank0]:[E321 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.
[rank3]:[E321 02:07:08.465224069 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 3] Exception (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.
""",
    ),
    (
        "torchrun's list copied from a picture",
        "exit-sigkill",
        2,
        None,
        "rank2 (local rank: 2)exitcode: -9",
        """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train v2.py FAILED
Root Cause (first observed failure) :
[0]:
time
host
rank2 (local rank: 2)exitcode: -9 (pid: 36071)error file: <N/A>
traceback : signal 9 (SIGKILL) received by PID 36071
""",
    ),
    (
        "SLURM names the task that ran out of memory, and kills the others with it",
        "host-oom",
        3,
        None,
        "oom_kill",
        """srun: error: node042: task 3: Out Of Memory
slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0. Some of the step tasks have been OOM Killed.
srun: Terminating StepId=1234.0
slurmstepd: error: *** STEP 1234.0 ON node041 CANCELLED AT 2025-01-30T19:00:11 ***
srun: error: node041: tasks 0-2: Killed
""",
    ),
    (
        "torchrun kills what has not ended 30 seconds after it was asked to: the rank that failed first is to blame",
        "child-failed-no-traceback",
        1,
        None,
        "traceback : To enable",
        """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-09-07_13:03:29
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 14689)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14689
[2]:
  time      : 2025-09-07_13:03:29
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 14691)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 14691
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-09-07_13:02:58
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 14690)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    ),
    (
        "timeouts of two groups are no mismatch: the group is on a later line",
        "nccl-timeout",
        None,
        None,
        "SeqNum=216",
        """[rank13]:[E218 04:54:22.864467604 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=216, OpType=ALLTOALL_BASE, NumelIn=1379, NumelOut=1572, Timeout(ms)=600000) ran for 600045 milliseconds before timing out.
[rank13]:[E218 04:54:22.864535778 ProcessGroupNCCL.cpp:1795] [PG ID 11 PG GUID 119 Rank 1] Exception (either an error or timeout) detected by watchdog at work: 216, last enqueued NCCL work: 220, last completed NCCL work: 215.
[rank15]:[E218 04:54:22.883327702 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=32, NumelOut=32, Timeout(ms)=600000) ran for 600045 milliseconds before timing out.
[rank15]:[E218 04:54:22.883358915 ProcessGroupNCCL.cpp:1795] [PG ID 11 PG GUID 112 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 57, last enqueued NCCL work: 57, last completed NCCL work: 56.
""",
    ),
    (
        "a progress bar before a traceback is no prefix, however many lines have one",
        "python-exception",
        None,
        "train.py:88",
        "ZeroDivisionError",
        """Running:  10%|##        | 10/100 [00:01<00:09, 10.0 examples/s]
Running:  20%|####      | 20/100 [00:02<00:08, 10.0 examples/s]
Running:  30%|######    | 30/100 [00:03<00:07, 10.0 examples/s]
Running:  40%|########  | 40/100 [00:04<00:06, 10.0 examples/s]Traceback (most recent call last):
  File "/app/train.py", line 88, in main
    loss /= masks
ZeroDivisionError: float division by zero
""",
    ),
    (
        "what Ray says of any worker that ended is no OOM killer",
        "child-failed-no-traceback",
        None,
        None,
        "A worker died",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 7 Worker exit "
        "detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. "
        "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called.\n",
    ),
    (
        "Ray's own monitor of memory",
        "host-oom",
        None,
        None,
        "low on memory",
        "(raylet) A worker died or was killed while executing a task. Worker PID: 7 Worker exit type: NODE_OUT_OF_MEMORY "
        "Worker exit detail: Task was killed due to the node running low on memory.\n",
    ),
    (
        "Lightning without a rank",
        "child-failed-no-traceback",
        None,
        None,
        "terminated with code 1",
        "Child process with PID 652 terminated with code 1. Forcefully terminating all other processes to avoid zombies\n",
    ),
    (
        "the shell's word at the end of a progress bar",
        "exit-sigkill",
        None,
        None,
        "Killed",
        "Epoch 1:  29%|#     | 94/323 [3:28:18<8:28:33,  1.33s/it, loss=3.23]Killed\n",
    ),
    (
        "the shell says that the job was ended",
        "job-cancelled",
        None,
        None,
        "Terminated",
        "Epoch 1:  29%|#     | 94/323 [3:28:18<8:28:33,  1.33s/it, loss=3.23]Terminated\n",
    ),
    (
        "a closed terminal, of which only what torchrun passes on is left",
        "job-cancelled",
        None,
        None,
        "SIGHUP",
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 102 closing signal SIGHUP\n",
    ),
    (
        "the rendezvous is closed because the other node was stopped",
        "job-cancelled",
        None,
        None,
        "Received 15 death signal",
        """  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", line 676, in run
    raise RendezvousClosedError
torch.distributed.elastic.rendezvous.api.RendezvousClosedError
W0409 07:28:49.530000 1359 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers
""",
    ),
    (
        "the rendezvous is closed, and nothing says why",
        "rendezvous-connection",
        None,
        None,
        "RendezvousClosedError",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n",
    ),
    (
        "a process of torch.multiprocessing.spawn failed, and its error is cut off",
        "child-failed-no-traceback",
        None,
        None,
        "Terminating process 43",
        """W0210 13:59:12.556000 139 torch/multiprocessing/spawn.py:145] Terminating process 43 via signal SIGTERM
Traceback (most recent call last):
  File "/app/train.py", line 136, in <module>
    main()
""",
    ),
    (
        "an error whose frames were left out",
        "python-exception",
        1,
        None,
        "AssertionError",
        "torch.multiprocessing.spawn.ProcessRaisedException:\n\n-- Process 1 terminated with the following error:\n...\nAssertionError\n",
    ),
    (
        "accelerate repeats what it started",
        "child-failed-no-traceback",
        None,
        None,
        "To enable traceback",
        """stderr: Root Cause (first observed failure):
stderr: [0]:
stderr:   time      : 2023-06-15_00:47:44
stderr:   rank      : 1 (local_rank: 1)
stderr:   exitcode  : 1 (pid: 22)
stderr:   traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/accelerate/test_utils/testing.py", line 383, in execute_subprocess_async
    raise RuntimeError(
RuntimeError: 'accelerate-launch test_script.py' failed with returncode 1
""",
    ),
    (
        "torchrun says that nobody else failed",
        "child-failed-no-traceback",
        0,
        None,
        "To enable traceback",
        """Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-02-05_01:02:51
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 90)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    ),
    (
        "two nodes list their failures: the earlier one is the first",
        "child-failed-no-traceback",
        4,
        None,
        "To enable traceback",
        """Root Cause (first observed failure):
[0]:
  time      : 2023-06-03_22:45:52
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 94)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2023-06-03_22:45:01
  rank      : 4 (local_rank: 0)
  exitcode  : 1 (pid: 91)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""",
    ),
    (
        "what Kubernetes says of a container",
        "child-failed-no-traceback",
        None,
        None,
        "exitCode: 1",
        "DEBUG events Error pod job-worker-0 container pytorch exitCode: 1 terminated message:\n",
    ),
    (
        "the rank is in the watchdog's line alone",
        "hardware-ecc",
        1,
        "unet.py:25",
        "uncorrectable ECC",
        """  File "/home/u/unet.py", line 25, in embed
    x = x / n
RuntimeError: CUDA error: uncorrectable ECC error encountered
[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered
""",
    ),
    (
        "sparse convolutions run out of memory in their own words",
        "cuda-oom",
        None,
        None,
        "out of memory",
        "RuntimeError: storage.h 168\ncuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1\n",
    ),
    (
        "torch 1.x could not reach the store",
        "rendezvous-connection",
        None,
        None,
        "connect() timed out",
        """  File "/opt/venv/lib/python3.9/site-packages/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py", line 155, in _create_tcp_store
    store = TCPStore(
RuntimeError: connect() timed out. Original timeout was 60000 ms.

The above exception was the direct cause of the following exception:
""",
    ),
    (
        "the line with the address is quoted beside the exception",
        "rendezvous-connection",
        None,
        None,
        "10.0.0.1:1234",
        """[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 10.0.0.1:1234
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.
""",
    ),
    (
        "torch 1.x misspelled what the ranks wait for",
        "store-timeout",
        0,
        None,
        "ncclUniqueId",
        "RuntimeError: [2] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by "
        "key '0', but store->get('0') got error: Socket Timeout\n",
    ),
    (
        "NCCL's own line about CUDA",
        "nccl-system-error",
        None,
        None,
        "Cuda failure",
        "n1:26:22 [0] include/alloc.h:102 NCCL WARN Cuda failure 1 'invalid argument'\n",
    ),
    (
        "a log whose lines were joined",
        "nccl-system-error",
        None,
        None,
        "NCCL error in",
        'File "/opt/venv/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 1906, in broadcast '
        "work = group.broadcast([tensor], opts) torch.distributed.DistBackendError: NCCL error in: nccl.cpp:1331, unhandled "
        "system error, NCCL version 2.18.5\n",
    ),
    (
        "the mark of a collector that ends like a progress bar",
        "store-timeout",
        0,
        None,
        "from [0]",
        """exp-1/0 [default1]:[rank1]:   File "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2780, in broadcast
exp-1/0 [default1]:[rank1]:     work = group.broadcast([tensor], opts)
exp-1/0 [default1]:[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms
""",
    ),
    (
        "a logger's mark, where the ends of lines were lost",
        "python-exception",
        7,
        "load.py:25",
        "AssertionError",
        """2025-10-31 03:11:02,475 - Tuner - INFO - [rank7]:   File "/app/load.py", line 25, in step     2025-10-31 03:11:02,475 - Tuner - INFO - [rank7]:     assert metadata is not None
2025-10-31 03:11:02,475 - Tuner - INFO - [rank7]: AssertionError     2025-10-31 03:11:02,475 - Tuner - INFO - [rank7]: Traceback (most recent call last): (RANK 7)
2025-10-31 03:11:02,475 - Tuner - INFO - [rank7]:   File "/app/utils.py",
""",
    ),
    (
        "a logger's mark in the middle of a traceback",
        "device-assert",
        None,
        "basics.py:138",
        "device-side assert",
        """2022-12-28 16:13:02 [ERROR]    File "/app/basics.py", line 268, in callback
2022-12-28 16:13:02 [ERROR]      evaluate()
2022-12-28 16:13:02 [ERROR]    File "/app/basics.py", line 138, in evaluate
2022-12-28 16:13:02 [ERROR]      losses[k] += loss.item()
2022-12-28 16:13:02 [ERROR]  RuntimeError: CUDA error: device-side assert triggered
""",
    ),
    (
        "a traceback without its exception",
        "python-exception",
        9,
        "utils.py:8",
        "torch.load",
        """[rank9]: Traceback (most recent call last):
[rank9]:   File "/app/main.py", line 4, in <module>
[rank9]:     resume()
[rank9]:   File "/app/utils.py", line 8, in resume
[rank9]:     state = torch.load(path)
""",
    ),
    (
        "another rank's traceback goes the same way before it is cut off",
        "python-exception",
        None,
        None,
        "Failed to import",
        """[rank4]:   File "/opt/venv/lib/python3.10/site-packages/transformers/utils/import_utils.py", line 1661, in _get_module
[rank4]:     raise RuntimeError(
[rank4]: RuntimeError: Failed to import a model because of the following error
[rank7]: Traceback (most recent call last):
[rank7]:   File "/opt/venv/lib/python3.10/site-packages/transformers/utils/import_utils.py", line 1659, in _get_module
[rank7]:     return importlib.import_module(name)
""",
    ),
    (
        "an exception in a sentence",
        "python-exception",
        None,
        None,
        "must match the size",
        "With four GPUs (DDP) RuntimeError: The size of tensor a (3) must match the size of tensor b (0) at dimension 1\n",
    ),
    (
        "timeouts that name no group, out of their order: they are of several groups",
        "nccl-timeout",
        None,
        None,
        "Watchdog caught",
        """[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9620, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800887 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9617, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800613 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:458] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6408, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800251 milliseconds before timing out.
""",
    ),
    (
        "a message that has lost its exception",
        "dtensor-mixed",
        None,
        None,
        "mixed torch.Tensor",
        "got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before calling distributed operators!\n",
    ),
    (
        "the quotation mark was not copied",
        "env-missing",
        None,
        "dist.py:73",
        "KeyError: 'RANK",
        """ File "/app/dist.py", line 73, in init
    rank = int(os.environ['RANK'])
  File "/usr/lib/python3.7/os.py", line 681, in __getitem__
    raise KeyError(key) from None
KeyError: 'RANK
""",
    ),
    (
        "torch 1.1 raises a worker's traceback as the message",
        "dataloader-shm",
        None,
        "main.py:136",
        "unable to write to file",
        """Traceback (most recent call last):
  File "/app/main.py", line 136, in train
    for i, batch in enumerate(loader):
  File "/opt/venv/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 307, in _process_next_batch
    raise batch.exc_type(batch.exc_msg)
RuntimeError: Traceback (most recent call last):
  File "/opt/venv/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 57, in _worker_loop
    samples = collate_fn([dataset[i] for i in batch_indices])
RuntimeError: unable to write to file </torch_76_36> at /pytorch/aten/src/TH/THAllocator.c:383
""",
    ),
    (
        "the error before the exception that a cut-off log ends in",
        "dataloader-shm",
        None,
        "main.py:136",
        "unable to write to file",
        """RuntimeError: unable to write to file </torch_76_36>
Traceback (most recent call last):
  File "/app/main.py", line 136, in train
    for i, batch in enumerate(loader):
  File "/opt/venv/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 307, in _process_next_batch
    raise batch.exc_type(batch.exc_msg)
""",
    ),
    (
        "a lock is a file in /dev/shm",
        "dataloader-shm",
        None,
        None,
        "No space left",
        """  File "/usr/lib/python3.10/multiprocessing/synchronize.py", line 57, in __init__
    sl = self._semlock = _multiprocessing.SemLock(
OSError: [Errno 28] No space left on device
""",
    ),
    (
        "no space for a file of the program is another thing",
        "python-exception",
        None,
        "train.py:9",
        "No space left",
        TRACE.format(line=9, code="torch.save(state, path)") + "OSError: [Errno 28] No space left on device\n",
    ),
    (
        "mpirun about a process whose number was left out",
        "exit-sigkill",
        1,
        None,
        "signal 9",
        "mpirun noticed that process rank 1 with PID xxx on node xxx exited on signal 9 (Killed).\n",
    ),
    (
        "mpirun about the process that failed first",
        "child-failed-no-traceback",
        2,
        None,
        "Process name",
        """Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[29973,1],2]
  Exit code:    1
""",
    ),
    (
        "Horovod's words on the ranks that did not fail",
        "python-exception",
        1,
        "train.py:5",
        "KeyError",
        """[1,0]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks.
[1,1]<stderr>:Traceback (most recent call last):
[1,1]<stderr>:  File "/app/train.py", line 5, in main
[1,1]<stderr>:    label = labels[name]
[1,1]<stderr>:KeyError: 'dog'
""",
    ),
    (
        "Open MPI has lost a peer",
        "store-peer-closed",
        None,
        None,
        "unexpectedly disconnected",
        "An MPI communication peer process has unexpectedly disconnected.  This\nusually indicates a failure in the peer process\n",
    ),
    (
        "a traceback whose lines were joined",
        "python-exception",
        None,
        "resume.py:116",
        "ValueError",
        'loading checkpoint Traceback (most recent call last): File "run.py", line 592, in <module> main() '
        'File "/app/resume.py", line 116, in load engine.load(path) '
        'File "/opt/venv/lib/python3.7/site-packages/engine/load.py", line 12, in load raise ValueError(tag) ValueError: no tag\n',
    ),
    (
        "the words of the operating system alone",
        "python-exception",
        None,
        None,
        "Errno 2",
        "then I got the error:\n[Errno 2] No such file or directory: 'out/global_step001/optim_states.pt'\n",
    ),
    (
        "the process that spawn reports first was asked to end",
        "job-cancelled",
        None,
        None,
        "SIGTERM",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGTERM\n",
    ),
    (
        "abseil's words for a signal",
        "exit-sigabrt",
        None,
        None,
        "SIGABRT",
        "(Worker pid=4009) *** SIGABRT received at time=1720159248 on cpu 5 ***\n",
    ),
    (
        "torch 1.7 raises a plain exception for that of a process",
        "python-exception",
        2,
        "train.py:9",
        "KeyError",
        """Traceback (most recent call last):
  File "/app/launch.py", line 126, in <module>
    mp.spawn(main, nprocs=4)
  File "/opt/venv/lib/python3.8/site-packages/torch/multiprocessing/spawn.py", line 119, in join
    raise Exception(msg)
Exception:

-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "/app/train.py", line 9, in main
    label = labels[name]
KeyError: 'dog'
""",
    ),
    (
        "the log ends in the traceback of a process that spawn reports",
        "python-exception",
        2,
        "train.py:9",
        "load(path)",
        """torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "/app/train.py", line 9, in main
    load(path)
  File "/opt/venv/lib/python3.8/site-packages/torch/serial
""",
    ),
    (
        "a progress bar and torchrun's words are no part of the message",
        "python-exception",
        None,
        None,
        "attention_mask",
        """KeyError: 'attention_mask'
steps:   0%|      | 0/186 [00:00<?, ?it/s]ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 76) of binary: /opt/venv/bin/python
""",
    ),
    (
        "torchrun's own error, as JSON behind the mark of a collector",
        "store-peer-closed",
        None,
        None,
        "Broken pipe",
        r"""(Actor pid=552)       "py_callstack": "Traceback (most recent call last):\n  File \"/opt/venv/lib/python3.9/site-packages/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py\", line 113, in _call_store\n    return getattr(self._store, store_op)(*args, **kwargs)\nRuntimeError: Broken pipe\n"
""",
    ),
    (
        "three ranks wait, and the log goes on: the fourth did not come",
        "nccl-timeout",
        0,
        None,
        None,
        """[E ProcessGroupNCCL.cpp:821] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803393 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:821] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803391 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:821] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803392 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:462] To avoid data inconsistency, we are taking the entire process down.
[E ProcessGroupNCCL.cpp:462] To avoid data inconsistency, we are taking the entire process down.
[E ProcessGroupNCCL.cpp:462] To avoid data inconsistency, we are taking the entire process down.
""",
    ),
    (
        "three ranks wait, and the log ends: a fourth may have been next",
        "nccl-timeout",
        None,
        None,
        "Watchdog caught",
        """[E ProcessGroupNCCL.cpp:821] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803393 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:821] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803391 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:821] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1803392 milliseconds before timing out.
[E ProcessGroupNCCL.cpp:462] To avoid data inconsistency, we are taking the entire process down.
""",
    ),
    (
        "the watchdog's error names the rank of the default group",
        "device-assert",
        5,
        None,
        "illegal memory access",
        """frame #5: c10d::ProcessGroupNCCL::watchdogHandler() + 0x1da (0x7f12 in /opt/venv/lib/libtorch_cuda.so)

terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
""",
    ),
    (
        "the watchdog's error names a rank of another group",
        "device-assert",
        None,
        None,
        "illegal memory access",
        """terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 2 PG GUID 9 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered
""",
    ),
    (
        "composer's launcher: a rank crashed",
        "exit-sigbus",
        3,
        None,
        "crashed with exit code -7",
        """Building train loader...
Building trainer...
ERROR:composer.cli.launcher:Rank 3 crashed with exit code -7.
""",
    ),
    (
        "composer's launcher: a global rank exited",
        "exit-sigsegv",
        6,
        None,
        "exited with code -11",
        """2026-08-30 11:05:32,217: rank6[5151][MainThread]: INFO: command_utils.train: Building tokenizer...
ERROR:composer.cli.launcher:Global rank 6 (PID 5151) exited with code -11
""",
    ),
    (
        "a message that the log cuts off",
        "inplace-version",
        None,
        "train.py:56",
        "has been modified",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/proj/train.py", line 56, in main
[rank0]:     loss.backward()
[rank0]: RuntimeError: one of the variables needed for gradient computation has been modified by an inplace op""",
    ),
    (
        "the watchdog's line is cut off",
        "nccl-timeout",
        None,
        None,
        "Watchdog caught",
        """  1%|          | 23/1752 [01:05<1:23:14,  2.89s/it]
  1%|          | 24/1752 [01:08<1:22:56,  2.88s/it][rank5]:[E602 11:17:52.185053341 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective opera""",
    ),
    (
        "old torch asks for the launcher's environment",
        "env-missing",
        None,
        "train.py:31",
        "is required for env://",
        """Traceback (most recent call last):
  File "tools/train.py", line 31, in main
    dist.init_process_group("nccl", init_method="env://")
RuntimeError: rank is not set but it is required for env:// init method at /build/torch/lib/THD/process_group/General.cpp:17
""",
    ),
    (
        "ColossalAI asks for the launcher's environment",
        "env-missing",
        None,
        None,
        "Could not find",
        """RuntimeError: Could not find 'WORLD_SIZE' in the torch environment, visit https://www.colossalai.org/ for more information on launching with torch
""",
    ),
    (
        "FlatParameter of older releases wants one dtype",
        "fsdp-dtype",
        None,
        None,
        "requires uniform dtype",
        """[rank0]: ValueError: `FlatParameter` requires uniform dtype but got torch.float16 and torch.float32
""",
    ),
    (
        "the block holds a traceback that the log cuts off",
        "python-exception",
        2,
        "trainer.py:71",
        "optimizer.step()",
        """Root Cause (first observed failure):
[0]:
  time      : 2026-01-10_16:00:57
  host      : node
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 82250)
  error_file: /tmp/torchelastic/attempt_0/2/error.json
  traceback : Traceback (most recent call last):
    File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper
      return f(*args, **kwargs)
             ^^^^^^^^^^^^^^^^^^
    File "/home/user/proj/trainer.py", line 71, in train
      optimizer.step()
    File "/home/us""",
    ),
    (
        "the thread that crashed is not the first one",
        "exit-sigsegv",
        None,
        "parallel.py:90",
        "Segmentation fault",
        """Fatal Python error: Segmentation fault

Thread 0x00007f2e93fff640 (most recent call first):
  File "/home/user/proj/monitor.py", line 46 in watch
  File "/usr/lib/python3.10/threading.py", line 953 in run

Current thread 0x00007f2ea0870640 (most recent call first):
  File "/opt/venv/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/home/user/proj/parallel.py", line 90 in reduce
""",
    ),
    (
        "the end of a message of torch.load, and a traceback that the log cuts off",
        "weights-only",
        None,
        "finetune.py:73",
        "accepted by default",
        """[rank1]: Check the documentation of torch.load to learn more about types accepted by default with weights_only https://pytorch.org/docs/stable/generated/torch.load.html.
[rank4]: Traceback (most recent call last):
[rank4]:   File "/home/user/proj/finetune.py", line 73, in main
[rank4]:     accelerator.load_state(last)""",
    ),
    (
        "Megatron counts skipped iterations in each line: none",
        "unknown",
        None,
        None,
        None,
        """ iteration        3/   50000 | lm loss: 2.097394E+01 | loss scale: 1.0 | grad norm: 308.510 | number of skipped iterations:   0 | number of nan iterations:   0 |
 iteration        4/   50000 | lm loss: 2.071394E+01 | loss scale: 1.0 | grad norm: 301.214 | number of skipped iterations:   0 | number of nan iterations:   0 |
""",
    ),
    (
        "Megatron: the norm of the gradients is not finite",
        "nan-loss",
        None,
        None,
        "grad norm: nan",
        """ iteration        3/   50000 | loss scale: 1.0 | grad norm: 308.510 | number of skipped iterations:   0 | number of nan iterations:   0 |
 iteration        4/   50000 | loss scale: 1.0 | grad norm: nan | number of skipped iterations:   0 | number of nan iterations:   0 |
""",
    ),
    (
        "the begin of the paths was left out",
        "python-exception",
        None,
        "basic.py:11",
        "KeyError",
        """Traceback (most recent call last):
  File "<left out>/proj/test/./basic.py", line 11, in main
    step(batch["horse"])
  File "<string>", line 3, in step
KeyError: 'horse'
""",
    ),
    (
        "words of a known error before a traceback begins on their line",
        "nccl-system-error",
        None,
        None,
        "internal error",
        """(VllmWorkerProcess pid=177) ERROR 09-23 10:49:22 utils.py:226] Exception in worker VllmWorkerProcess while processing method init_device: NCCL error: internal error - please report this issue to the NCCL developers, Traceback (most recent call last):
(VllmWorkerProcess pid=177) ERROR 09-23 10:49:22 utils.py:226]   File "/opt/venv/lib/python3.11/site-packages/vllm/executor/utils.py", line 223, in run
(VllmWorkerProcess pid=177) ERROR 09-23 10:49:22 utils.py:226]     output = executor(*args, **kwargs)
""",
    ),
    (
        "FSDP with CPU offloading finds parameters on a GPU",
        "fsdp-device",
        None,
        None,
        "CPU offloading enabled",
        """RuntimeError: An FSDP-managed module with parameter CPU offloading enabled has parameters on cuda:0. Make sure to not move the module from CPU when offloading parameters.
""",
    ),
    (
        "the name of the master does not resolve",
        "rendezvous-connection",
        None,
        None,
        "does not resolve",
        """nslookup: can't resolve 'job-master-0': Name does not resolve
waiting for master

Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
""",
    ),
    (
        "a kernel of an AMD GPU",
        "device-assert",
        None,
        None,
        "Memory access fault",
        """Memory access fault by GPU node-1 (Agent handle: 0x55eb9b5) on address 0x7f66960b2000. Reason: Page not present or supervisor privilege.
Aborted (core dumped)
""",
    ),
    (
        "HCCL: a rank waited",
        "nccl-timeout",
        None,
        "reduce.py:35",
        "HcclAllreduce",
        """[rank1]:   File "/home/user/proj/reduce.py", line 35, in reduce
[rank1]:     dist.all_reduce(loss)
[rank1]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6
[rank1]: [ERROR] 2026-04-08-18:07:20 (PID:1292, Device:1, RankID:1) ERR01100 OPS call acl api failed.
[rank1]: EI0006: [PID: 1292] 2026-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the data in time. Please check the reason for the rank being stuck
""",
    ),
    (
        "torch for Windows has no libuv",
        "python-exception",
        None,
        None,
        "use_libuv",
        """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "F:\\conda\\envs\\proj\\Scripts\\torchrun.exe\\__main__.py", line 7, in <module>
torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support, run with USE_LIBUV=0 to disable it.
""",
    ),
    (
        "a pipe to a process that was being started",
        "python-exception",
        None,
        "main.py:112",
        "Broken pipe",
        """Traceback (most recent call last):
  File "C:\\proj\\main.py", line 112, in train
    for inputs, labels in loader:
  File "C:\\Users\\nina\\anaconda3\\lib\\site-packages\\torch\\utils\\data\\dataloader.py", line 719, in __init__
    w.start()
  File "C:\\Users\\nina\\anaconda3\\lib\\multiprocessing\\popen_spawn_win32.py", line 89, in __init__
    reduction.dump(process_obj, to_child)
  File "C:\\Users\\nina\\anaconda3\\lib\\multiprocessing\\reduction.py", line 60, in dump
    ForkingPickler(file, protocol).dump(obj)
BrokenPipeError: [Errno 32] Broken pipe
""",
    ),
    (
        "a compiler that a rank had started",
        "python-exception",
        None,
        "train.py:14",
        "gcc",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/user/proj/train.py", line 14, in main
[rank0]:     out = compiled(batch)
[rank0]:   File "/usr/lib/python3.12/subprocess.py", line 571, in run
[rank0]:     raise CalledProcessError(retcode, process.args,
[rank0]: subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmp3k/main.c', '-O3', '-shared', '-o', '/tmp/tmp3k/utils.so']' returned non-zero exit status 1.
""",
    ),
    (
        "gloo cannot connect",
        "rendezvous-connection",
        None,
        "train.py:8",
        "Connection timed out",
        """Traceback (most recent call last):
  File "/home/user/proj/train.py", line 8, in main
    dist.init_process_group("gloo")
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:769] connect [10.0.0.1]:7841: Connection timed out
""",
    ),
    (
        "SLURM kills the other tasks after one has failed",
        "child-failed-no-traceback",
        2,
        None,
        "task 2: Exited with exit code 1",
        """srun: error: gpu07: task 2: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=8123.0
slurmstepd: error: *** STEP 8123.0 ON gpu07 CANCELLED AT 2024-03-02T08:00:36 ***
srun: error: gpu07: tasks 0-1: Killed
srun: error: gpu08: task 7: Killed
srun: error: gpu08: tasks 4-6: Killed
""",
    ),
    (
        "SLURM kills a task, then the others",
        "exit-sigkill",
        1,
        None,
        "task 1: Killed",
        """srun: error: gpu07: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=8123.0
slurmstepd: error: *** STEP 8123.0 ON gpu07 CANCELLED AT 2024-03-02T08:00:36 ***
srun: error: gpu07: tasks 0,2-3: Killed
""",
    ),
    (
        "a task of HCCL timed out",
        "nccl-timeout",
        None,
        "model.py:40",
        "task timeout",
        """Traceback (most recent call last):
  File "/home/u/model.py", line 40, in sync
    torch.sum(sizes).item()
RuntimeError: ACL stream synchronize failed.
EI9999: Inner Error!
EI9999: 2024-10-21-10:42:00.358.410  The error from device(chipId:3, dieId:0), serial number is 9, hccl fftsplus task timeout occurred during task execution, stream_id:5, timeout:30min(default).
        TraceBack (most recent call last):
""",
    ),
    (
        "an NPU's task timed out, without a traceback",
        "nccl-timeout",
        None,
        None,
        "[task timeout]",
        """EH9999: Inner Error!
        rtDeviceSynchronize execute failed, reason=[task timeout][FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:53]
[W NPUStream.cpp:365] Warning: NPU warning, error code is 107020[Error]: .
""",
    ),
    (
        "a rendezvous of torch_xla lost its server",
        "store-peer-closed",
        None,
        "step.py:72",
        "Socket closed",
        """Exception in device=TPU:6: tensorflow/compiler/xla/xla_client/mesh_service.cc:294 : Failed to meet rendezvous 'loss_reduce': Socket closed (14)
Traceback (most recent call last):
  File "/opt/conda/lib/python3.7/site-packages/torch_xla/distributed/xla_multiprocessing.py", line 231, in _start_fn
    fn(gindex, *args)
  File "/home/u/step.py", line 72, in train_step
    reduced
""",
    ),
    (
        "the mesh master of torch_xla is not reached",
        "rendezvous-connection",
        None,
        None,
        "mesh master",
        """Failed to connect to client mesh master: node0:56419
Traceback (most recent call last):
  File "/home/u/spawn.py", line 73, in <module>
    xmp.spawn(run, args=(), nprocs=8)
  File "/opt/conda/lib/python3.6/site-packages/torch/multiprocessing/spawn.py", line 112, in join
    (error_index, exitcode)
Exception: process 1 terminated with exit code 17
""",
    ),
    (
        "requires_grad of an older FSDP",
        "fsdp-requires-grad",
        None,
        "train.py:8",
        "FlatParameter",
        TRACE.format(line=8, code="model = FSDP(model)")
        + "ValueError: `FlatParameter` requires uniform `requires_grad`\n",
    ),
    (
        "what NCCL calls the last error, without the exception before it",
        "nccl-remote-error",
        None,
        "train.py:44",
        "closed by remote peer",
        """ProcessGroupNCCL.cpp:1275, internal error, NCCL version 2.14.3
ncclInternalError: Internal check failed.
Last error:
Net : Connection closed by remote peer user<43236>
Traceback (most recent call last):
  File "/home/u/train.py", line 44, in train
    trainer.fit(model)
  File "/opt/conda/lib/python3.9/site-packages/lightning/pytorch/trainer/trainer.py", line 529, in fit
    call._call_and_handle_interrupt(
""",
    ),
    (
        "a warning of an old NCCL says why the collective failed",
        "cuda-oom",
        None,
        "toy.py:10",
        "out of memory",
        """node1:101211:106353 [0] init.cu:218 WARN Cuda failure 'out of memory'
node1:101211:106353 [0] INFO init.cu:191 -> 3
Traceback (most recent call last):
  File "/home/u/toy.py", line 10, in run
    dist.all_reduce(tensor)
RuntimeError: NCCL error in: /pytorch/torch/lib/THD/base/data_channels/DataChannelNccl.cpp:324, internal error
""",
    ),
    (
        "no InfiniBand is there, and none is needed",
        "unknown",
        None,
        None,
        None,
        """node1:205826:205907 [0] NCCL INFO NET/IB : No device found.
node1:205826:205907 [0] NCCL INFO NET/Socket : Using [0]eth0:10.221.109.254<0>
node1:205826:205907 [0] NCCL INFO Using network Socket
""",
    ),
    (
        "the log ends in the name of the exception that Ray raises again",
        "child-failed-no-traceback",
        None,
        None,
        "RayTaskError",
        """ray.exceptions.RayTaskError(ActorDiedError): ray::Runner.run() (pid=20877, ip=10.0.0.4, actor_id=0009f2)
  File "/home/u/main.py", line 241, in run
    trainer.fit()
  File "/home/u/base.py", line 50, in __call__
    output = ray.get(output)
ray.e
""",
    ),
    (
        "the log ends in the message that a `raise` of several lines has",
        "cuda-fork",
        None,
        "train.py:24",
        "forked subprocess",
        """-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/home/u/train.py", line 24, in loop
    accelerator = Accelerator()
  File "/opt/conda/lib/python3.7/site-packages/torch/cuda/__init__.py", line 161, in _lazy_init
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with
""",
    ),
    (
        "CUDA was initialised before notebook_launcher",
        "cuda-fork",
        None,
        None,
        "causing CUDA to be initialized",
        """W0422 05:09:47.881000 204 torch/multiprocessing/spawn.py:169] Terminating process 249 via signal SIGTERM
notebook_launcher failed: An issue was found when verifying a stable environment for the notebook launcher. Please review your imports to identify which one is problematic and causing CUDA to be initialized.
""",
    ),
    (
        "an HPU that another process has",
        "invalid-device",
        None,
        None,
        "synDeviceAcquire",
        """HCCL demo error: In function initDevice(): synDeviceAcquire(&resources.deviceHandle, nullptr) failed with synapse error: 20
""",
    ),
    (
        "two processes write into one line that there is no NCCL",
        "python-exception",
        None,
        None,
        "NCCL built in",
        """raise RuntimeError("Distributed package doesn't have NCCL " "built in")
: RuntimeErrorDistributed package doesn't have NCCL built in:
Distributed package doesn't have NCCL built in
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 14708) of binary: C:\\venv\\python.exe
""",
    ),
    (
        "Horovod's launcher",
        "child-failed-no-traceback",
        None,
        None,
        "Process 2 exit",
        """[2]<stderr>:command terminated with exit code 1
Process 2 exit with status code 1.
Traceback (most recent call last):
  File "/usr/local/bin/horovodrun", line 8, in <module>
    sys.exit(run_commandline())
  File "/usr/local/lib/python3.7/dist-packages/horovod/runner/gloo_run.py", line 323, in launch_gloo
    .format(name=name, code=exit_code))
RuntimeError: Horovod detected that one or more processes exited with non-zero status
""",
    ),
    (
        "the kernel's log of a crash in native code",
        "exit-sigsegv",
        None,
        None,
        "segfault at",
        "[Mon Jun 23 19:39:31 2025] python3.10[3078129]: segfault at 60 ip 00007f24b8cf2616 sp 00007ffc0f212680 error 4 in libc10_cuda.so[7f24b8cc8000+5c000]\n",
    ),
    (
        "the kernel's log of a fault of an AMD GPU",
        "device-assert",
        None,
        None,
        "page fault",
        "[22340.105945] amdgpu 0000:83:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32775, for process python3 pid 172865)\n",
    ),
    (
        "NCCL on InfiniBand got another size",
        "collective-mismatch",
        None,
        None,
        "collective mismatch error",
        "node1:1307367:1307586 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.6<58683> collective mismatch error, local size 496640 remote size 65536\n",
    ),
    (
        "NCCL on sockets got another size",
        "collective-mismatch",
        None,
        None,
        "message truncated",
        "node1:2918:3333 [0] src/transport/net_socket.cc:200 NCCL WARN NET/Socket : message truncated : receiving 696320 bytes instead of 32768\n",
    ),
    (
        "NCCL read another group's message",
        "nccl-system-error",
        None,
        None,
        "bootstrap.cc",
        "node2:4827:6900 [4] bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4\n",
    ),
    (
        "ZeRO-3 compares the order of the modules",
        "collective-mismatch",
        None,
        "train.py:77",
        "disagreement",
        TRACE.format(line=77, code="loss = model(batch)")
        + "RuntimeError: disagreement between rank0 and rank1: rank0: [1, 2, 3], rank1: [1, 3]\n",
    ),
    (
        "one rank says that rank 0 did not answer in a monitored barrier",
        "monitored-barrier",
        None,
        "train.py:138",
        "successfully reached monitoredBarrier",
        """[rank1]:[E ProcessGroupGloo.cpp:144] Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.
 Original exception:
[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:133] Timed out waiting 1800000ms for send operation to complete
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/train.py", line 138, in epoch
[rank1]:     dist.barrier()
""",
    ),
    (
        "the launcher of a later node loses the first one's rendezvous",
        "store-peer-closed",
        None,
        None,
        "keep-alive heartbeat",
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'node1_187281_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error of type RendezvousConnectionError.\n",
    ),
    (
        "the launcher names a rank of which the log has nothing",
        "python-exception",
        None,
        "train.py:9",
        "no_sync",
        """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 9, in main
[rank0]:     with model.no_sync():
[rank0]: AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 3
W1126 23:28:07.821000 402381 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 402434 closing signal SIGTERM
E1126 23:28:11.641000 402381 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 402435) of binary: /opt/conda/bin/python
""",
    ),
    (
        "torch's own tests are no code of the user",
        "python-exception",
        None,
        "test_mine.py:4",
        "error code 10",
        """Traceback (most recent call last):
  File "/home/u/test_mine.py", line 4, in test
    self._join_processes(run)
  File "/home/u/pytorch/torch/testing/_internal/common_distributed.py", line 926, in _check_return_codes
    raise RuntimeError(error)
RuntimeError: Process 0 exited with error code 10
""",
    ),
    (
        "ranks wait for one another at the start, and go on",
        "unknown",
        None,
        None,
        None,
        """INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 1, key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)
INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:1 to store for rank: 0
INFO:torch.distributed.distributed_c10d:Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes.
INFO:torch.distributed.distributed_c10d:Rank 1: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes.
""",
    ),
    (
        "ranks wait for one another at the start, and do not go on",
        "store-timeout",
        None,
        None,
        "Waiting in store based barrier",
        "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 1, key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)\n",
    ),
    (
        "a tracker's service has ended",
        "python-exception",
        None,
        "train.py:160",
        "Broken pipe",
        """Traceback (most recent call last):
  File "/home/u/train.py", line 160, in train
    wandb.log(metrics)
  File "/opt/lib/python3.10/site-packages/wandb/sdk/lib/sock_client.py", line 130, in _sendall_with_error_handle
    sent = self._sock.send(data)
BrokenPipeError: [Errno 32] Broken pipe
""",
    ),
    (
        "SageMaker's words for a script that failed",
        "child-failed-no-traceback",
        None,
        None,
        "ExecuteUserScriptError",
        """UnexpectedStatusException: Error for Training job pytorch-training-2022-01-25: Failed. Reason: AlgorithmError: ExecuteUserScriptError:
ExitCode 1
""",
    ),
    (
        "a rank dumps because it timed out by itself, another one because it was told to",
        "nccl-timeout",
        None,
        None,
        "from this local rank",
        """[rank1]:[E1128 21:11:49.041194513 ProcessGroupNCCL.cpp:1870] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 22, last completed NCCL work: 21.
[rank0]:[E1128 21:11:49.041188078 ProcessGroupNCCL.cpp:1806] [PG ID 0 PG GUID 0(default_pg) Rank 0] Observed flight recorder dump signal from another rank via TCPStore.
[rank2]:[E1128 21:11:49.041253142 ProcessGroupNCCL.cpp:1870] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 22, last completed NCCL work: 21.
""",
    ),
]

_TIMEOUT = "[rank{rank}]:[E301 10:00:00.{rank} ProcessGroupNCCL.cpp:563] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600050 milliseconds before timing out.\n"
_FOLLOWS = "[rank{rank}]:[E301 10:00:01.{rank} ProcessGroupNCCL.cpp:577] [Rank {rank}] Some NCCL operations have failed or timed out.\n"
_DOWN = "[rank{rank}]:[E301 10:00:02.{rank} ProcessGroupNCCL.cpp:583] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.\n"
_THREE = "".join(_TIMEOUT.format(rank=rank) for rank in (1, 2, 3)) + "".join(
    _FOLLOWS.format(rank=rank) for rank in (1, 2, 3)
)
_PIPELINE = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/u/pipe.py", line 30, in main
[rank{rank}]:     schedule.step()
[rank{rank}]:   File "/opt/lib/python3.11/site-packages/torch/distributed/pipelining/schedules.py", line 708, in step
[rank{rank}]:     work.wait()
[rank{rank}]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/{error}
"""

#: Which rank is to blame, and where the log does not tell.
SAMPLES += [
    (
        "the log ends while the ranks that waited still say good-bye",
        "nccl-timeout",
        None,
        None,
        "SeqNum=40",
        _THREE + _DOWN.format(rank=2),
    ),
    (
        "all ranks that waited say good-bye",
        "nccl-timeout",
        0,
        None,
        "SeqNum=40",
        _THREE + "".join(_DOWN.format(rank=rank) for rank in (1, 2, 3)),
    ),
    (
        "a stage of a pipeline waits for another one",
        "gloo-timeout",
        None,
        "pipe.py:30",
        "Timed out waiting",
        "world_size=4\n"
        + _PIPELINE.format(rank=0, error="pair.cc:525] Read error [127.0.1.1]:4321: Connection reset by peer")
        + _PIPELINE.format(
            rank=2, error="unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete"
        ),
    ),
    (
        "rank 0 has left a monitored barrier",
        "monitored-barrier",
        0,
        None,
        "successfully reached monitoredBarrier",
        """RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.
 Original exception:
[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:5512
""",
    ),
    (
        "two calls of which the numbers differ, too",
        "collective-mismatch",
        None,
        None,
        "Detected mismatch",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=9OpType=BARRIER).\n",
    ),
]

_TABLE = "(TrainController pid=70) - (ip={ip}, pid={pid}) world_rank={rank}, local_rank=0, node_rank=0\n"
_RAY_FAILS = (
    "(RayTrainWorker pid=72) Traceback (most recent call last):\n"
    '(RayTrainWorker pid=72)   File "/home/u/train.py", line 8, in loop\n'
    "(RayTrainWorker pid=72)     batch = table[key]\n"
    "(RayTrainWorker pid=72) KeyError: 'x'\n"
)
_ZERO_FAILS = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 8, in loop
[rank0]:     batch = table[key]
[rank0]: KeyError: 'x'
"""
_AGENT_WAITS = """Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 254, in launch_agent
    result = agent.run()
  File "/opt/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py", line {line}, in {function}
    store.get(key)
torch.distributed.DistStoreError: Socket Timeout
"""

#: What launchers tell of ranks.
SAMPLES += [
    (
        "Ray Train's table of ranks",
        "python-exception",
        3,
        "train.py:8",
        "KeyError",
        _TABLE.format(ip="10.0.0.2", pid=72, rank=3) + _TABLE.format(ip="10.0.0.2", pid=71, rank=2) + _RAY_FAILS,
    ),
    (
        "Ray Train's table, where two hosts have processes of one number",
        "python-exception",
        None,
        "train.py:8",
        "KeyError",
        _TABLE.format(ip="10.0.0.2", pid=72, rank=3) + _TABLE.format(ip="10.0.0.3", pid=72, rank=2) + _RAY_FAILS,
    ),
    (
        "torchrun stops a rank that had not failed",
        "python-exception",
        0,
        "train.py:8",
        "KeyError",
        _ZERO_FAILS
        + "W0301 10:00:00.983000 40 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 42 closing signal SIGTERM\n",
    ),
    ("only rank 0 is in the log", "python-exception", None, "train.py:8", "KeyError", _ZERO_FAILS),
    (
        "a launcher waits for the other nodes",
        "rendezvous-timeout",
        None,
        None,
        "Socket Timeout",
        _AGENT_WAITS.format(line=711, function="run"),
    ),
    (
        "a launcher waits for the other nodes at the end",
        "store-timeout",
        None,
        None,
        "Socket Timeout",
        _AGENT_WAITS.format(line=956, function="_exit_barrier"),
    ),
]

#: Failures that an exception only passes on: what is quoted is the failure itself.
SAMPLES += [
    (
        "a kernel's assertion without its quotation marks, and the exception that reports it",
        "device-assert",
        None,
        "train.py:9",
        "label out of range",
        '/pytorch/aten/src/ATen/native/cuda/Loss.cu:240: nll_loss: block: [2,0,0], thread: [7,0,0] Assertion t >= 0 && t < n && "label out of range" failed.\n'
        + TRACE.format(line=9, code="loss.backward()")
        + "RuntimeError: CUDA error: device-side assert triggered\n",
    ),
    (
        "a worker's bus error below the exception of its process",
        "dataloader-shm",
        None,
        "train.py:12",
        "Unexpected bus error",
        TRACE.format(line=12, code="for batch in loader:")
        + '  File "/opt/conda/lib/python3.9/site-packages/torch/utils/data/dataloader.py", line 1203, in _try_get_data\n    raise RuntimeError() from e\n'
        "RuntimeError: DataLoader worker (pid(s) 51, 52) exited unexpectedly\n"
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n",
    ),
    (
        "a worker that exits unexpectedly, and nothing else",
        "dataloader-exited",
        None,
        "train.py:12",
        "exited unexpectedly",
        TRACE.format(line=12, code="for batch in loader:")
        + "RuntimeError: DataLoader worker (pid(s) 51) exited unexpectedly\n",
    ),
    (
        "a socket that could not be bound, and the store that then had none",
        "port-in-use",
        None,
        None,
        "errno: 98",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to 0.0.0.0:12355 (errno: 98 - Address already in use).\n"
        "[E socket.cpp:462] [c10d] The server socket has failed to listen on any local network address.\n",
    ),
    (
        "NCCL's warning before the exception that it ends in",
        "nccl-system-error",
        None,
        None,
        "No route to host",
        "gpu3:88:120 [1] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.2.3<40001> failed : No route to host\n"
        "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1191, unhandled system error, NCCL version 2.10.3\n",
    ),
    (
        "the watchdog's words after an error of NCCL that is no timeout",
        "nccl-remote-error",
        None,
        None,
        "Connection reset by peer",
        """[rank2]:[E301 10:00:00.1 ProcessGroupNCCL.cpp:681] [Rank 2] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
[rank2]:[E301 10:00:00.2 ProcessGroupNCCL.cpp:695] [Rank 2] To avoid data inconsistency, we are taking the entire process down.
[rank2]:[E301 10:00:00.3 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketPollConnect: Call to recv from 10.1.2.4<41000> failed : Connection reset by peer
""",
    ),
    (
        "the log ends in the `raise` of a missing variable",
        "env-missing",
        None,
        "train.py:6",
        "WORLD_SIZE",
        TRACE.format(line=6, code='dist.init_process_group("gloo")')
        + '  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 254, in _get_env_or_raise\n    raise _env_error("WORLD_SIZE")\n',
    ),
    (
        "Rust's allocator gives up",
        "host-oom",
        None,
        None,
        "memory allocation of",
        "memory allocation of 1048576 bytes failed\n"
        "[2024-03-01 10:00:01,000] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 301\n"
        "[2024-03-01 10:00:02,000] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=3'] exits with return code = -6\n",
    ),
    (
        "a dead actor of Ray",
        "child-failed-no-traceback",
        None,
        None,
        "worker process has died",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: Trainer\n\tpid: 77\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n",
    ),
]

#: Exceptions, and words of the cause and of the remedy that they get.
_SPAWN_ENDS = """Traceback (most recent call last):
  File "{folder}train.py", line 31, in <module>
    mp.spawn(work, nprocs=4)
  File "{folder}Lib{sep}site-packages{sep}torch{sep}multiprocessing{sep}spawn.py", line 184, in join
    raise ProcessExitedException(
torch.multiprocessing.spawn.ProcessExitedException: process {process} terminated with exit code {code}
"""
_LEAVES = """Traceback (most recent call last):
  File "/opt/lib/python3.9/site-packages/torch/distributed/elastic/agent/server/api.py", line 904, in _exit_barrier
    store_util.barrier(self._store)
  File "/opt/lib/python3.9/site-packages/torch/distributed/elastic/utils/store.py", line 31, in get_all
    data = store.get(f"{prefix}{idx}")
RuntimeError: Socket Timeout
"""
_IPV6 = "[W socket.cpp:601] [c10d] The IPv6 network addresses of (gpu-a, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n"
_DESYNC = """[rank0]:[E515 09:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=61, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.
[rank0]:[E515 09:00:00.2 ProcessGroupNCCL.cpp:1937] Rank 0
	 - [0] Timeout at collective: ALLREDUCE, #75
	 - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
{behind}	 - Snapshot of ranks' latest states:
	   #75 started ranks:
	     [0, 1, 2] started ALLREDUCE
"""
_SERVER = """[2025-03-01 10:00:00] Received sigquit from a child process. It usually means the child failed.
[2025-03-01 10:00:00 {who}] Scheduler hit an exception: Traceback (most recent call last):
  File "/home/u/serve.py", line 40, in load
    weights = weights.cuda()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
_MPI_NAMES = """--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[4711,1],{rank}]
  Exit code:    1
--------------------------------------------------------------------------
"""

SAMPLES += [
    (
        "an access violation on Windows is a crash",
        "exit-sigsegv",
        2,
        None,
        "exit code 3221225477",
        _SPAWN_ENDS.format(folder="C:\\u\\", sep="\\", process=2, code=3221225477),
    ),
    (
        "what abort() ends in on Windows",
        "exit-sigabrt",
        1,
        None,
        "3221226505",
        _SPAWN_ENDS.format(folder="C:\\u\\", sep="\\", process=1, code=3221226505),
    ),
    (
        "torchrun tells the code of Windows as a negative number",
        "exit-sigsegv",
        1,
        None,
        "-1073741819",
        "E0301 10:00:09.000000 17 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -1073741819) local_rank: 1 (pid: 21) of binary: C:\\py\\python.exe\n",
    ),
    (
        "a code that is no crash",
        "child-failed-no-traceback",
        None,
        None,
        "exit code 3",
        _SPAWN_ENDS.format(folder="/home/u/", sep="/", process=1, code=3),
    ),
    (
        "a launcher in other words",
        "exit-sigkill",
        3,
        None,
        "exitcode: -9",
        "[2025-03-01 10:00:00,000] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) for binary /usr/bin/python3 with local_rank: 3 (process ID: 90)\n",
    ),
    (
        "a worker of vLLM's engine",
        "child-failed-no-traceback",
        3,
        None,
        "VllmWorker-3 died",
        """INFO 03-01 10:00:00 [core.py:70] Initializing an engine
ERROR 03-01 10:05:16 [multiproc_executor.py:140] Worker proc VllmWorker-3 died unexpectedly, shutting down executor.
DEBUG 03-01 10:06:16 [shm_broadcast.py:456] No available shared memory broadcast block found in 60 second.
""",
    ),
    (
        "a worker of vLLM's older engine was killed",
        "exit-sigkill",
        None,
        None,
        "exit code: -9",
        "ERROR 03-01 10:05:16 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 4000 died, exit code: -9\n",
    ),
    (
        "mpirun names the first failure alone",
        "child-failed-no-traceback",
        0,
        None,
        "Process name: [[4711,1],0]",
        "[1,2]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks.\n"
        "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n" + _MPI_NAMES.format(rank=0),
    ),
    (
        "a launcher that waits for the others at the end",
        "store-timeout",
        None,
        None,
        "Socket Timeout",
        _LEAVES,
    ),
    (
        "a launcher waits at the end, and its node could not be reached",
        "nccl-system-error",
        None,
        None,
        "No route to host",
        _LEAVES
        + "gpu-b:795:795 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.8<0>\n"
        + "gpu-b:795:822 [0] include/socket.h:409 NCCL WARN Net : Connect to 10.0.0.9<5000> failed : No route to host\n",
    ),
    (
        "a host that has neither an IPv6 address nor another",
        "rendezvous-connection",
        None,
        None,
        "IPv4 network addresses",
        _IPV6 + _IPV6.replace("IPv6", "IPv4"),
    ),
    (
        "the desync report says what the rank behind has finished",
        "nccl-timeout",
        3,
        None,
        "finished collective #74",
        _DESYNC.format(behind="	     [3] finished collective #74, but didn't join collective #75 (count from 1)\n"),
    ),
    (
        "the desync report names several",
        "nccl-timeout",
        None,
        None,
        None,
        _DESYNC.format(
            behind="	     [1] joined but didn't finish collective #75 (count from 1)\n"
            "	     [3] finished collective #74, but didn't join collective #75 (count from 1)\n"
        ),
    ),
    (
        "NCCL warns of the call that then failed",
        "nccl-system-error",
        None,
        "train.py:7",
        "transport/p2p.cc:271 NCCL WARN",
        """gpu-a:90:95 [0] transport/p2p.cc:271 NCCL WARN Cuda failure 'peer mapping resources exhausted'
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 7, in main
[rank0]:     dist.all_reduce(x)
[rank0]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5
""",
    ),
    (
        "HCCL's process of an earlier job",
        "nccl-system-error",
        None,
        "train.py:7",
        "Failed to initialize the HCCP process",
        TRACE.format(line=7, code="dist.barrier()")
        + """RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64
[ERROR] 2024-03-01-10:00:00 (PID:90, Device:1, RankID:1) ERR02200 DIST call hccl api failed.
EJ0001: 2024-03-01-10:00:00.167.645 Failed to initialize the HCCP process. Reason: Maybe the last training process is running.
""",
    ),
    (
        "a check of the losses' names",
        "collective-mismatch",
        None,
        None,
        "loss log variables",
        "AssertionError: loss log variables are different across GPUs!\nrank 1 len(log_vars): 2 keys: loss_cls,loss_box\n",
    ),
    (
        "a distributed checkpoint shows what another rank raised",
        "python-exception",
        1,
        "store.py:40",
        "KeyError",
        """[rank3]: Traceback (most recent call last): (RANK 1)
[rank3]:   File "/opt/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 164, in reduce_scatter
[rank3]:     local_data = map_fun()
[rank3]:   File "/home/u/store.py", line 40, in plan
[rank3]:     return self.shards[key]
[rank3]: KeyError: 'norm.weight'
""",
    ),
    (
        "SGLang names the rank where a traceback begins",
        "cuda-oom",
        2,
        "serve.py:40",
        "CUDA out of memory",
        _SERVER.format(who="TP2"),
    ),
    (
        "SGLang's rank of tensor parallelism in one of several replicas",
        "cuda-oom",
        None,
        "serve.py:40",
        "CUDA out of memory",
        _SERVER.format(who="DP1 TP2"),
    ),
    (
        "NCCL's thread for the network only passes on",
        "nccl-remote-error",
        None,
        None,
        "Connection closed by remote peer",
        """gpu-a:90:95 [3] proxy.cc:1519 NCCL WARN [Proxy Service 11] Failed to execute operation Connect from rank 11, retcode 2
gpu-a:90:96 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu-b<5000>
""",
    ),
    (
        "a GPU that another program holds",
        "invalid-device",
        None,
        "train.py:7",
        "busy or unavailable",
        TRACE.format(line=7, code="model.cuda()")
        + "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n",
    ),
    (
        "Megatron's own code is a library",
        "python-exception",
        None,
        "pretrain.py:30",
        "ZeroDivisionError",
        """Traceback (most recent call last):
  File "/w/project/pretrain.py", line 30, in <module>
    forward_backward(model)
  File "/w/Megatron-LM/megatron/core/pipeline_parallel/schedules.py", line 200, in forward_step
    loss = func()
ZeroDivisionError: division by zero
""",
    ),
    (
        "timeouts, and a log that ends before all say that they go down",
        "nccl-timeout",
        None,
        None,
        None,
        "".join(_TIMEOUT.format(rank=rank) for rank in (0, 1, 3))
        + "".join(_FOLLOWS.format(rank=rank) for rank in (0, 1, 3)),
    ),
]


WORDS = [
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "fabric manager",
        "nvidia-fabricmanager",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.26.2\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 802 'system not yet initialized'",
        "fabric manager",
        "nvidia-fabricmanager",
    ),
    (
        "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data/3",
        "quota",
        "df -h",
    ),
    ("OSError: [Errno 122] Disk quota exceeded", "quota", "quota -s"),
    (
        "ImportError: /opt/lib/python3.11/site-packages/kernels.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "another release of torch",
        "Reinstall or rebuild",
    ),
    ("TypeError: cannot pickle 'module' object", "pickled", "top of a module"),
    ("AttributeError: Can't pickle local object 'loader.<locals>.collate'", "pickled", "top of a module"),
    ("RuntimeError: Distributed package doesn't have NCCL built in", "no NCCL", "gloo"),
    (
        "AssertionError: req MetadataIndex(fqn='embed.weight', offset=torch.Size([0, 0]), index=0) mismatch sizes torch.Size([15])",
        "another shape",
        "configuration",
    ),
    (
        "ImportError: /opt/conda/lib/python3.8/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister",
        "older libnccl",
        "LD_LIBRARY_PATH",
    ),
    ("RuntimeError: Gloo connectFullMesh failed with [pair.cc:152] no error", "loopback", "GLOO_SOCKET_IFNAME"),
    (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "interrupted",
        "head -c",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.84 GiB.", "activations", "smaller batch"),
    (
        "RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (4) x 1",
        "number of processes",
        "product",
    ),
    ("RuntimeError: broadcast isn't implemented on backend [xpu]", "backend", "init_process_group"),
    ("FloatingPointError: Fatal error: gradients are inconsistent between workers.", "norms", "legacy_ddp"),
    ("RuntimeError: wait: hccl fftsplus task timeout occurred during task execution", "HCCL", "HCCL_EXEC_TIMEOUT"),
]

#: Two processes of one job, one of which only meets the end of the other.
TWO = [
    (0, "Traceback (most recent call last):"),
    (0, '  File "/app/train.py", line 192, in <module>'),
    (1, "Traceback (most recent call last):"),
    (1, '  File "/app/train.py", line 192, in <module>'),
    (0, "    loss.backward()"),
    (0, "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:37425"),
    (0, ""),
    (1, "    main(cfg)"),
    (1, '  File "/app/train.py", line 88, in train_one'),
    (1, "    loss /= num_masks"),
    (1, "ZeroDivisionError: float division by zero"),
]
#: How collectors and loggers mark the lines of a process, and whether the mark shows the rank.
MARKS = [
    ("> {text}", False),
    ("trainer-{rank}  | {text}", False),
    ("trainer/{rank} {text}", False),
    ("May 12 10:11:1{rank} node{rank} train[10{rank}]: {text}", False),
    ("[1,mpirank:{rank},algo-1]<stderr>:{text}", True),
    ("[2024-02-27T21:05:18.67039{rank}Z] fa88a9d{rank} [rank={rank}] || {text}", True),
    ("[rank: {rank}] {text}", True),
    ("[rank{rank}][ERROR] {text}", True),
    ("[stderr][rank_{rank}] {text}", True),
    ('{{"severity": "ERROR", "rank": {rank}, "message": {quoted}}}', True),
]

_NOT_DESTROYED = "ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())"
_NEEDLESS = "[W reducer.cpp:1303] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass. (function operator())\n"
_SKIPPED = "[2024-03-01 10:00:0{n},000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {old}, reducing to {new}\n"
_FAILED = "E0301 10:00:09.000000 17 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 21) of binary: /usr/bin/python3\n"

#: What the words of a log alone tell of a kind: name, kind, sub-kind, verdict, log.
SUBKINDS = [
    ("a host without an IPv6 address", "no-failure", "benign", "OK", _IPV6 * 3),
    (
        "the desync report",
        "nccl-timeout",
        "missing-rank",
        "HANG",
        _DESYNC.format(behind="	     [3] finished collective #74, but didn't join collective #75 (count from 1)\n"),
    ),
    (
        "some ranks have no loss of a kind",
        "collective-mismatch",
        "data-dependent-forward",
        "DIVERGENCE",
        "AssertionError: loss log variables are different across GPUs!\n",
    ),
    (
        "torch reminds of destroy_process_group",
        "no-failure",
        "benign",
        "OK",
        f"[rank0]:[W301 10:00:00.1 {_NOT_DESTROYED}\n[rank1]:[W301 10:00:00.2 {_NOT_DESTROYED}\n",
    ),
    (
        "torch 2.4 reminds of it",
        "no-failure",
        "benign",
        "OK",
        "[rank0]:[W301 10:00:00.1 ProcessGroupNCCL.cpp:1168] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group\n",
    ),
    (
        "torch reminds of it, and a rank failed",
        "child-failed-no-traceback",
        None,
        "UNKNOWN",
        f"[rank1]:[W301 10:00:00.2 {_NOT_DESTROYED}\n" + _FAILED,
    ),
    ("a search for unused parameters that finds none", "ddp-unused-params", "benign", "OK", _NEEDLESS * 2),
    (
        "a search that finds none says nothing about a failure",
        "child-failed-no-traceback",
        None,
        "UNKNOWN",
        _NEEDLESS + _FAILED,
    ),
    (
        "a gradient whose layout is not that of its bucket",
        "no-failure",
        "benign",
        "OK",
        "/opt/conda/lib/python3.11/site-packages/torch/autograd/graph.py:825: UserWarning: Grad strides do not match bucket view strides. This is not an error, but may impair performance.\n",
    ),
    (
        "the loss scale looks for its value",
        "loss-scale",
        "benign",
        "OK",
        _SKIPPED.format(n=1, old="65536.0", new="32768.0") + _SKIPPED.format(n=2, old="32768.0", new="16384.0"),
    ),
    ("the loss scale is at its end", "loss-scale", None, "ROOT", _SKIPPED.format(n=1, old="2.0", new="1.0")),
    (
        "skipped steps before a failure",
        "loss-scale",
        None,
        "ROOT",
        _SKIPPED.format(n=1, old="256.0", new="128.0") + _FAILED,
    ),
    (
        "the loss scale is used up",
        "loss-scale",
        "fatal",
        "ROOT",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n",
    ),
    (
        "InfiniBand has tried often enough",
        "nccl-ib",
        "network",
        "LAUNCH",
        "gpu1:7:99 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<5001> with error 12, opcode 0, len 0, vendor err 129 (Recv)\n",
    ),
    (
        "InfiniBand may not use the memory",
        "nccl-ib",
        None,
        "LAUNCH",
        "gpu1:7:99 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<5001> with status=4 opcode=0 len=0 vendor err 81 (Send)\n",
    ),
    (
        "libfabric cannot deliver",
        "nccl-remote-error",
        "network",
        "UNKNOWN",
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3763, remote process exited or there was a network error, NCCL version 2.26.2\n"
        "[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "[rank3]: Last error:\n"
        "[rank3]: NET/OFI Request 0x7f00 completed with error. RC: 5. Error: 3 (I/O error). Completed length: 0\n",
    ),
    (
        "a timeout of milliseconds",
        "nccl-timeout",
        "false-positive",
        "OK",
        _TIMEOUT.format(rank=1).replace("=600000", "=30").replace("600050", "45"),
    ),
    (
        "the check of all calls has counted otherwise",
        "collective-mismatch",
        "false-positive",
        "OK",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=4OpType=BARRIER), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3OpType=BARRIER).Collectives differ in the following aspects: \tSequence number: 4vs 3\n",
    ),
    (
        "several ranks did not come",
        "monitored-barrier",
        "missing-rank",
        "HANG",
        "RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 60000 ms\n",
    ),
]
