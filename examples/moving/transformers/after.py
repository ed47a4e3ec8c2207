import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loopwright import Trainer

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, inputs, labels):
        outputs = self.net(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
# the model returns its loss
trainer = Trainer(model, optimizer, clip_norm=1.0, run_dir="runs/output")
eval_batches = {"inputs": x[320:], "labels": y[320:]}


def collate(samples):
    inputs, labels = zip(*samples, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}


history = trainer.train(
    DataLoader(train_data, batch_size=32, collate_fn=collate), num_epochs=5, eval_data=eval_batches
)
print(f"eval loss {history.last('eval_loss'):.6f}")
