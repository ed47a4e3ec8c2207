from functools import partial

import torch
from fastai.basics import DataLoader, DataLoaders, Learner, OptimWrapper
from fastai.callback.tracker import SaveModelCallback
from torch import nn
from torch.utils.data import TensorDataset

generator = torch.Generator().manual_seed(0)
x = torch.randn(400, 10, generator=generator)
y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
train_data, eval_data = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
loaders = DataLoaders(DataLoader(train_data, bs=32), DataLoader(eval_data, bs=32))
learner = Learner(
    loaders,
    model,
    loss_func=nn.MSELoss(),
    opt_func=partial(OptimWrapper, opt=partial(torch.optim.SGD, momentum=0.9)),
    cbs=[SaveModelCallback("valid_loss")],
)
learner.fit(5, lr=0.02)
print(f"eval loss {learner.recorder.values[-1][1]:.6f}")
