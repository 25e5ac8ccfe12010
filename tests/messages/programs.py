"""Programs of sends and receives: some hang, each marked where the first of its ranks waits, and others end.

All of them were run on two ranks with gloo; those that hang ended in timeouts and closed connections."""

HEAD = """import torch
import torch.distributed as dist
"""

START = """dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
x, y = torch.ones(4), torch.zeros(4)
"""

#: Programs in which a rank waits for ever.
HANGING = {
    "a send that nobody receives": START
    + """if rank == 0:
    dist.send(x, 1)  # waits
""",
    "a receive that nobody sends to": START
    + """if rank == 1:
    dist.recv(x, src=0)  # waits
print(rank)
""",
    "a send that returns at once, waited for": START
    + """if rank == 0:
    work = dist.isend(x, dst=1)  # waits
    work.wait()
dist.barrier()
""",
    "four receives for three sends": START
    + """if rank == 0:
    for step in range(3):
        dist.send(x, 1)
elif rank == 1:
    for step in range(4):
        dist.recv(y, 0)  # waits
""",
    "a loop of sends that is left early": START
    + """if rank == 0:
    for step in range(4):
        if step == 3:
            break
        dist.send(x, 1)
elif rank == 1:
    for step in range(4):
        dist.recv(y, 0)  # waits
""",
    "a receive from the rank itself": START
    + """if rank == 0:
    dist.recv(y, 0)  # waits
else:
    dist.send(x, 0)
""",
    "both receive before they send": START
    + """peer = 1 - rank
dist.recv(y, peer)  # waits
dist.send(x, peer)
""",
    "both send before they receive": START
    + """peer = rank ^ 1
dist.send(x, peer)  # waits
dist.recv(y, peer)
""",
    "a ring that receives first": START
    + """dist.recv(y, (rank - 1) % size)  # waits
dist.send(x, (rank + 1) % size)
""",
    "a ring that waits for its send at once": START
    + """dist.isend(x, (rank + 1) % size).wait()  # waits
dist.recv(y, (rank - 1) % size)
""",
    "a ring in which the last rank receives twice": START
    + """work = dist.isend(x, (rank + 1) % size)
if rank == size - 1:
    dist.recv(y, rank - 1)
    dist.recv(y, rank - 1)  # waits
else:
    dist.recv(y, (rank - 1) % size)
work.wait()
""",
    "a batch with a receive too many on one rank": START
    + """peer = 1 - rank
ops = [dist.P2POp(dist.isend, x, peer)]
ops.append(dist.P2POp(dist.irecv, y, peer))
if rank == 1:
    ops.append(dist.P2POp(dist.irecv, y, peer))  # waits
for work in dist.batch_isend_irecv(ops):
    work.wait()
""",
    "a gather that receives from its own rank": START
    + """if rank == 0:
    for src in range(size):
        dist.recv(y, src)  # waits
else:
    dist.send(x, 0)
""",
    "objects that are received twice": START
    + """if rank == 0:
    dist.send_object_list([1], dst=1)
elif rank == 1:
    dist.recv_object_list([None], src=0)
    dist.recv_object_list([None], src=0)  # waits
""",
    "a barrier before the send and behind the receive": START
    + """if rank == 0:
    dist.barrier()
    dist.send(x, 1)
else:
    if rank == 1:
        dist.recv(y, 0)  # waits
    dist.barrier()
""",
    "an answer that nobody waits for": """def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.zeros(1)
    if rank == 0:
        x += 1
        dist.send(tensor=x, dst=1)
    else:
        dist.recv(tensor=x, src=0)
        dist.send(tensor=x, dst=0)  # waits

if __name__ == "__main__":
    main()
""",
    "the same by two helpers": START
    + """def give(t, dst):
    dist.send(t, dst)  # waits

def take(src):
    t = torch.zeros(4)
    dist.recv(t, src)
    return t

if rank == 0:
    give(x, 1)
    take(1)
elif rank == 1:
    give(x, 0)
    take(0)
""",
    "two receives for a send in each of some rounds": START
    + """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()
for step in range(args.steps):
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(y, 0)  # waits
        dist.recv(y, 0)
""",
    "a ring by an object that knows its neighbours": """class Ring:
    def __init__(self):
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.next = (self.rank + 1) % self.size
        self.previous = (self.rank - 1) % self.size

    def rotate(self, x):
        received = torch.empty_like(x)
        dist.send(x, self.next)  # waits
        dist.recv(received, self.previous)
        return received

dist.init_process_group("gloo")
print(Ring().rotate(torch.ones(4)))
""",
    "a pipeline without its backward sends": START
    + """for step in range(2):
    if rank > 0:
        dist.recv(y, rank - 1)
    if rank < size - 1:
        dist.send(x, rank + 1)
    if rank < size - 1:
        dist.recv(y, rank + 1)  # waits
""",
    "both wait for their receive before they send": START
    + """peer = 1 - rank
req = dist.irecv(y, peer)  # waits
req.wait()
req = dist.isend(x, peer)
req.wait()
""",
    "works in a list, more receives than sends": START
    + """works = []
if rank == 0:
    for src in range(1, size):
        works.append(dist.irecv(torch.zeros(4), src))
        works.append(dist.irecv(torch.zeros(4), src))  # waits
else:
    works.append(dist.isend(x, 0))
for work in works:
    work.wait()
""",
    "the rank and the size by the environment": """import os
rank = int(os.environ["RANK"])
world_size = int(os.environ.get("WORLD_SIZE", 1))
dist.init_process_group("gloo")
x = torch.zeros(4)
if rank == world_size - 1:
    dist.recv(x, 0)  # waits
dist.destroy_process_group()
""",
}

#: Programs in which none does.
ENDING = {
    "a pair": START
    + """if rank == 0:
    dist.send(x, 1)
elif rank == 1:
    dist.recv(y, 0)
""",
    "a ring in which every other rank receives first": START
    + """after, before = (rank + 1) % size, (rank - 1) % size
if rank % 2 == 0:
    dist.send(x, after)
    dist.recv(y, before)
else:
    dist.recv(y, before)
    dist.send(x, after)
""",
    "a ring that sends in the background": START
    + """right, left = (rank + 1) % size, (rank - 1 + size) % size
accum = x.clone()
for i in range(size - 1):
    if i % 2 == 0:
        req = dist.isend(x, right)
        dist.recv(y, left)
    else:
        req = dist.isend(y, right)
        dist.recv(x, left)
    req.wait()
""",
    "a ring in one batch": START
    + """ops = [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, y, (rank - 1) % size)]
for req in dist.batch_isend_irecv(ops):
    req.wait()
""",
    "a batch of those neighbours that there are": START
    + """ops = []
if rank > 0:
    ops.append(dist.P2POp(dist.irecv, y, rank - 1))
if rank < size - 1:
    ops.append(dist.P2POp(dist.isend, x, rank + 1))
if ops:
    [work.wait() for work in dist.batch_isend_irecv(ops)]
""",
    "a gather by sends": START
    + """if rank == 0:
    parts = [x]
    for src in range(1, size):
        part = torch.empty_like(x)
        dist.recv(part, src=src)
        parts.append(part)
else:
    dist.send(x, dst=0)
""",
    "receives from any rank, which are answered": START
    + """if rank == 0:
    for _ in range(size - 1):
        sender = dist.recv(y)
        dist.send(x, sender)
else:
    dist.send(x, 0)
    dist.recv(y, 0)
""",
    "receives from any rank": START
    + """if rank == 0:
    for _ in range(size - 1):
        sender = dist.recv(y)
else:
    dist.send(x, 0)
""",
    "a parameter server": START
    + """steps = 3
if rank == 0:
    for step in range(steps):
        for worker in range(1, size):
            dist.send(x, worker)
        for worker in range(1, size):
            dist.recv(y, worker)
else:
    for step in range(steps):
        dist.recv(y, 0)
        dist.send(x, 0)
""",
    "a pipeline with one forward and one backward in turn": START
    + """micro = 4
warmup = min(size - rank - 1, micro)
remaining = micro - warmup
first, last = rank == 0, rank == size - 1

def recv_forward():
    if not first:
        dist.recv(y, rank - 1)

def send_forward():
    if not last:
        dist.send(x, rank + 1)

def recv_backward():
    if not last:
        dist.recv(y, rank + 1)

def send_backward():
    if not first:
        dist.send(x, rank - 1)

def send_forward_recv_backward():
    if not last:
        ops = [dist.P2POp(dist.isend, x, rank + 1), dist.P2POp(dist.irecv, y, rank + 1)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

def send_backward_recv_forward():
    if not first:
        ops = [dist.P2POp(dist.isend, x, rank - 1), dist.P2POp(dist.irecv, y, rank - 1)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

for _ in range(warmup):
    recv_forward()
    send_forward()
if remaining > 0:
    recv_forward()
for i in range(remaining):
    send_forward_recv_backward()
    if i == remaining - 1:
        send_backward()
    else:
        send_backward_recv_forward()
for _ in range(warmup):
    recv_backward()
    send_backward()
""",
    "tasks until one says that it is the last": START
    + """if rank == 0:
    for task in range(4):
        dist.send(torch.tensor([task + 1.0]), 1)
    dist.send(torch.tensor([0.0]), 1)
elif rank == 1:
    while True:
        task = torch.zeros(1)
        dist.recv(task, 0)
        if task.item() == 0:
            break
""",
    "a tree": START
    + """step = 1
while step < size:
    if rank % (2 * step):
        dist.send(x, rank - step)
        break
    if rank + step < size:
        dist.recv(y, rank + step)
    step *= 2
""",
    "a broadcast by sends": START
    + """if rank == 0:
    reqs = [dist.isend(x, dst) for dst in range(1, size)]
    for req in reqs:
        req.wait()
else:
    dist.recv(x, 0)
dist.barrier()
""",
    "as many rounds in each arm": START
    + """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()
if rank == 0:
    for step in range(args.steps):
        dist.send(x, 1)
elif rank == 1:
    for step in range(args.steps):
        dist.recv(y, 0)
""",
    "the last rank and the first": START
    + """if rank == size - 1:
    dist.send(x, 0)
if rank == 0:
    dist.recv(y, size - 1)
""",
    "objects to each rank": START
    + """if rank == 0:
    for dst in range(1, size):
        dist.send_object_list(["a", dst], dst=dst)
else:
    received = [None, None]
    dist.recv_object_list(received, src=0)
""",
    "all pairs of ranks": START
    + """for one in range(size):
    for two in range(one + 1, size):
        if rank == one:
            dist.send(x, two)
            dist.recv(y, two)
        elif rank == two:
            dist.recv(y, one)
            dist.send(x, one)
""",
    "a ring whose last rank receives first": START
    + """if rank != size - 1:
    dist.send(x, (rank + 1) % size)
    dist.recv(y, (rank - 1) % size)
else:
    dist.recv(y, rank - 1)
    dist.send(x, 0)
""",
    "as many messages as a rank has told the others": START
    + """lengths = torch.tensor([rank + 1])
everyone = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
dist.all_gather(everyone, lengths)
if rank == 0:
    for src in range(1, size):
        for _ in range(int(everyone[src].item())):
            dist.recv(y, src)
else:
    for _ in range(rank + 1):
        dist.send(x, 0)
""",
}
