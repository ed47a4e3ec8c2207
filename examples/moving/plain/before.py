import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
loss_fn = nn.MSELoss()
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)

best = float("inf")
for _ in range(5):
    model.train()
    for inputs, targets in DataLoader(train_data, batch_size=32):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scheduler.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in DataLoader(eval_data, batch_size=32):
            inputs, targets = inputs.to(device), targets.to(device)
            total += loss_fn(model(inputs), targets).item() * len(inputs)
    eval_loss = total / len(eval_data)
    if eval_loss < best:
        best = eval_loss
        torch.save(model.state_dict(), "best.pt")
print(f"eval loss {eval_loss:.6f}")
