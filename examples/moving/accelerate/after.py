import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Trainer

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

trainer = Trainer(
    model, optimizer, nn.MSELoss(), accumulate=2, clip_norm=1.0, run_dir="runs/accelerate"
)
history = trainer.train(DataLoader(train_data, batch_size=32), num_epochs=5, eval_data=eval_data)
print(f"eval loss {history.last('eval_loss'):.6f}")
