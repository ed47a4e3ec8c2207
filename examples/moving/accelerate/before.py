import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loss_fn = nn.MSELoss()

accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, train_loader, eval_loader = accelerator.prepare(
    model, optimizer, DataLoader(train_data, batch_size=32), DataLoader(eval_data, batch_size=32)
)
for _ in range(5):
    model.train()
    for inputs, targets in train_loader:
        with accelerator.accumulate(model):
            loss = loss_fn(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    outputs, wanted = [], []
    with torch.no_grad():
        for inputs, targets in eval_loader:
            gathered = accelerator.gather_for_metrics((model(inputs), targets))
            outputs.append(gathered[0])
            wanted.append(gathered[1])
    eval_loss = loss_fn(torch.cat(outputs), torch.cat(wanted)).item()
    accelerator.save_state("checkpoint")
accelerator.print(f"eval loss {eval_loss:.6f}")
